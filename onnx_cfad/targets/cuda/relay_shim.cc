// The source half of TVM 0.19's CUDA target, for a libtvm.so that was built without CUDA: its code generator is in the
// library, only its registration is missing. Declares what the library exports and the wheel ships no header of.
#include <tvm/runtime/module.h>
#include <tvm/runtime/packed_func.h>
#include <tvm/runtime/registry.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tvm {
class GlobalVar;
class IRModule;
namespace tir {
class PrimFunc;
}
namespace runtime {
struct FunctionInfo {  // as in src/runtime/meta_data.h of 0.19
  std::string name;
  std::vector<DLDataType> arg_types;
  std::vector<std::string> launch_param_tags;
};
}  // namespace runtime
namespace codegen {
class CodeGenC {
 public:
  void DeclareFunction(const GlobalVar&, const tir::PrimFunc&);
  void AddFunction(const GlobalVar&, const tir::PrimFunc&);
};
class CodeGenCUDA {
 public:
  CodeGenCUDA();
  void Init(bool output_ssa);
  std::string Finish();
};
std::unordered_map<std::string, runtime::FunctionInfo> ExtractFuncInfo(const IRModule&);
runtime::Module DeviceSourceModuleCreate(std::string code, std::string format,
                                         std::unordered_map<std::string, runtime::FunctionInfo> functions,
                                         std::string kind, std::function<std::string(const std::string&)> source);
}  // namespace codegen
}  // namespace tvm

namespace {
using namespace tvm::runtime;

constexpr size_t kRoom = 16384;  // for an object whose size is private to the library; it needs less than 2 KiB

// Pairs of a GlobalVar and a PrimFunc -> CUDA C, in the order given.
std::string Source(TVMArgs args) {
  void* room = std::aligned_alloc(64, kRoom);  // never freed: the destructor is out of reach
  std::memset(room, 0, kRoom);
  auto* generator = new (room) tvm::codegen::CodeGenCUDA();
  auto* base = reinterpret_cast<tvm::codegen::CodeGenC*>(generator);
  generator->Init(false);
  std::vector<ObjectRef> given;
  for (int i = 0; i < args.size(); ++i) given.push_back(args[i].operator ObjectRef());
  for (bool declare : {true, false}) {
    for (size_t i = 0; i + 1 < given.size(); i += 2) {
      const auto& name = reinterpret_cast<const tvm::GlobalVar&>(given[i]);
      const auto& function = reinterpret_cast<const tvm::tir::PrimFunc&>(given[i + 1]);
      if (declare) {
        base->DeclareFunction(name, function);
      } else {
        base->AddFunction(name, function);
      }
    }
  }
  return generator->Finish();
}
}  // namespace

TVM_REGISTER_GLOBAL("onnx_cfad.cuda_source").set_body([](TVMArgs args, TVMRetValue* result) { *result = Source(args); });

// IRModule, source -> the module that the host part is linked with.
TVM_REGISTER_GLOBAL("onnx_cfad.cuda_module").set_body([](TVMArgs args, TVMRetValue* result) {
  ObjectRef module = args[0].operator ObjectRef();
  auto functions = tvm::codegen::ExtractFuncInfo(reinterpret_cast<const tvm::IRModule&>(module));
  *result = tvm::codegen::DeviceSourceModuleCreate(args[1].operator std::string(), "cuda", functions, "cuda", nullptr);
});
