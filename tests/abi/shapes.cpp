// Operators of many shapes, whose kernels check their inputs and allocate their outputs; tests/test_shapes.py compares
// them with what follows from the same lines in Python.
#include "arguments.h"
#include "notation.cpp"
#include "operator.cpp"

namespace {

using extension_cpp::CheckedInputs;
using extension_cpp::Operator;
using extension_cpp::Tensor;
using extension_cpp::TensorList;

using MaybeTensor = std::optional<Tensor>;

const Operator kSame{"same(Tensor input) -> Tensor", "*shape -> *shape"};
const Operator kAdd3{"add3(Tensor a, Tensor x, Tensor b) -> Tensor", "..., ..., ... -> ..."};
const Operator kRows{"rows(Tensor input, Tensor bias, float scale=1.0) -> Tensor", "*rows n, n -> *rows n"};
const Operator kNorm{
    "norm(Tensor input, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> (Tensor, Tensor)",
    "*rows n, n:wide, n:wide -> *rows n, *rows:sum"};
const Operator kNormBackward{
    "norm_backward(Tensor grad_output, Tensor mean, Tensor? weight=None) -> (Tensor, Tensor)",
    "*rows n, *rows:sum, n:wide -> *rows n, n:weight"};
const Operator kAttention{"attention(Tensor q, Tensor k) -> Tensor", "b h t d, b h s d -> b h t s"};
const Operator kMatmul{"matmul(Tensor a, Tensor b) -> Tensor", "... m k, ... k n -> ... m n"};
const Operator kEmbedding{"embedding(Tensor weight, Tensor index) -> Tensor", "n d, *batch:int64 -> *batch d"};
const Operator kLookup{"lookup(Tensor index, Tensor table) -> Tensor", "*batch:int32, n d -> *batch d"};
const Operator kWhere{"where(Tensor condition, Tensor a, Tensor b) -> Tensor", "...:bool, ...:any, ...:a -> ...:a"};
const Operator kLess{"less(Tensor a, Tensor b) -> Tensor", "..., ... -> ...:bool"};
const Operator kSum{"sum(Tensor[] xs) -> Tensor", "*shape -> *shape"};
const Operator kSumBroadcast{"sum_broadcast(Tensor[] xs, Tensor y) -> Tensor", "..., ... -> ..."};
const Operator kColumns{"columns(Tensor y, Tensor[] xs) -> Tensor", "n, *_ n -> n"};
const Operator kTrace{"trace(Tensor input) -> Tensor", "n n -> ()"};
const Operator kTraces{"traces(Tensor input) -> Tensor", "*batch n n -> *batch"};
const Operator kGray{"gray(Tensor input, Tensor mean) -> Tensor", "*batch 3 h w, 3 -> *batch h w"};
const Operator kAddTo{"add_to(Tensor a, Tensor(a!) out) -> ()", "*shape, *shape ->"};
const Operator kMiddle{"middle(Tensor x, Tensor y, Tensor z) -> Tensor", "a *rows b, b, a -> b *rows a"};
const Operator kScale{"scale(Tensor x, Tensor factor) -> Tensor", "*shape, () -> *shape"};
const Operator kQuantize{"quantize(Tensor x) -> (Tensor, Tensor)", "*rows n -> *rows n:int8, *rows:sum"};
const Operator kMasked{"masked(Tensor? mask, Tensor x) -> Tensor", "*shape:bool, *shape -> *shape"};
const Operator kAnything{"anything(Tensor x, Tensor y) -> Tensor", "_ n:any, n _:x -> n:x"};
const Operator kFollows{"follows(Tensor? w, Tensor[] xs, Tensor y) -> Tensor", "n:y, n [3]:y, n -> n"};
const Operator kTopK{"topk(Tensor x, int k) -> (Tensor, Tensor)", "*rows n -> *rows k, *rows k:int64"};
const Operator kHalves{"halves(Tensor x, Tensor? gate=None) -> Tensor", "*rows 2n, *rows n -> *rows n"};
const Operator kBlocks{"blocks(Tensor x) -> (Tensor, Tensor)", "*rows 4n 2m -> *rows 2m 4n:int8, *rows m n:sum"};
const Operator kJoined{"joined(Tensor a, Tensor b) -> Tensor", "*rows n, *rows m -> *rows n+m"};
const Operator kPadded{"padded(Tensor x, int before, SymInt after=1) -> Tensor", "*rows n -> *rows before+n+2after"};
const Operator kSlid{"slid(Tensor x, Tensor taps, int step=1) -> Tensor", "b 3n+1, k -> b 3n-k+2step n-n+2"};
const Operator kVarlen{"varlen(Tensor offsets, Tensor x, int heads) -> Tensor", "b+1:int32, t heads d -> b heads+d t"};
const Operator kSplit{"split(Tensor x, Tensor[] parts, int k=2) -> Tensor", "n-k k, n-2k -> n"};
const Operator kMany{"many(Tensor[] xs) -> ()"};
const Operator kUnread{"unread(Tensor input) -> Tensor", "*rows *cols -> *rows"};

Tensor same(const Tensor& a) { return kSame.check(a).new_output(); }
Tensor add3(const Tensor& a, const Tensor& x, const Tensor& b) { return kAdd3.check(a, x, b).new_output(); }
Tensor rows(const Tensor& a, const Tensor& b, double) { return kRows.check(a, b).new_output(); }
Tensor attention(const Tensor& a, const Tensor& b) { return kAttention.check(a, b).new_output(); }
Tensor matmul(const Tensor& a, const Tensor& b) { return kMatmul.check(a, b).new_output(); }
Tensor embedding(const Tensor& a, const Tensor& b) { return kEmbedding.check(a, b).new_output(); }
Tensor lookup(const Tensor& a, const Tensor& b) { return kLookup.check(a, b).new_output(); }
Tensor where(const Tensor& a, const Tensor& b, const Tensor& c) { return kWhere.check(a, b, c).new_output(); }
Tensor less(const Tensor& a, const Tensor& b) { return kLess.check(a, b).new_output(); }
Tensor sum(TensorList a) { return kSum.check(a).new_output(); }
Tensor sum_broadcast(TensorList a, const Tensor& b) { return kSumBroadcast.check(a, b).new_output(); }
Tensor columns(const Tensor& a, TensorList b) { return kColumns.check(a, b).new_output(); }
Tensor trace(const Tensor& a) { return kTrace.check(a).new_output(); }
Tensor traces(const Tensor& a) { return kTraces.check(a).new_output(); }
Tensor gray(const Tensor& a, const Tensor& b) { return kGray.check(a, b).new_output(); }
void add_to(const Tensor& a, const Tensor& b) { kAddTo.check(a, b); }
Tensor middle(const Tensor& a, const Tensor& b, const Tensor& c) { return kMiddle.check(a, b, c).new_output(); }
Tensor scale(const Tensor& a, const Tensor& b) { return kScale.check(a, b).new_output(); }
Tensor masked(const MaybeTensor& a, const Tensor& b) { return kMasked.check(a, b).new_output(); }
Tensor anything(const Tensor& a, const Tensor& b) { return kAnything.check(a, b).new_output(); }
Tensor follows(const MaybeTensor& a, TensorList b, const Tensor& c) { return kFollows.check(a, b, c).new_output(); }
Tensor halves(const Tensor& a, const MaybeTensor& b) { return kHalves.check(a, b).new_output(); }
Tensor joined(const Tensor& a, const Tensor& b) { return kJoined.check(a, b).new_output(); }
Tensor padded(const Tensor& a, int64_t before, int64_t after) { return kPadded.check(a, before, after).new_output(); }
Tensor slid(const Tensor& a, const Tensor& b, int64_t step) { return kSlid.check(a, b, step).new_output(); }
Tensor varlen(const Tensor& a, const Tensor& b, int64_t heads) { return kVarlen.check(a, b, heads).new_output(); }
Tensor split(const Tensor& a, TensorList b, int64_t k) { return kSplit.check(a, b, k).new_output(); }
Tensor forgetful(const Tensor& a, int64_t) { return kTopK.check(a).new_output(); }
void many(TensorList a) { const extension_cpp::Pointers<float> pointers(extension_cpp::as_contiguous(a)); }
Tensor unread(const Tensor& a) { return kUnread.check(a).new_output(); }

std::tuple<Tensor, Tensor> two(const CheckedInputs& inputs) { return {inputs.new_output(0), inputs.new_output(1)}; }
std::tuple<Tensor, Tensor> norm(const Tensor& a, const MaybeTensor& b, const MaybeTensor& c, double) {
  return two(kNorm.check(a, b, c));
}
std::tuple<Tensor, Tensor> norm_backward(const Tensor& a, const Tensor& b, const MaybeTensor& c) {
  return two(kNormBackward.check(a, b, c));
}
std::tuple<Tensor, Tensor> topk(const Tensor& a, int64_t k) { return two(kTopK.check(a, k)); }
std::tuple<Tensor, Tensor> blocks(const Tensor& a) { return two(kBlocks.check(a)); }
std::tuple<Tensor, Tensor> quantize(const Tensor& a) { return two(kQuantize.check(a)); }

// The lines that say something, and the one that does not.
std::string described(bool unread) {
  std::string found;
  const std::string all = Operator::describe_all();
  for (size_t begin = 0, end; (end = all.find('\x1e', begin)) != all.npos; begin = end + 1) {
    const std::string record = all.substr(begin, end + 1 - begin);
    found += (record.rfind("unread", 0) == 0) == unread ? record : "";
  }
  return found;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* extension_cpp_shapes_operators() {
  static const std::string text = described(false);
  return text.c_str();
}

extern "C" __attribute__((visibility("default"))) const char* extension_cpp_shapes_unread_operators() {
  static const std::string text = described(true);
  return text.c_str();
}

TORCH_LIBRARY_FRAGMENT(extension_cpp_shapes, m) {
  for (const Operator* op :
       {&kSame,   &kAdd3,   &kRows,     &kNorm,         &kNormBackward, &kAttention, &kMatmul, &kEmbedding, &kLookup,
        &kWhere,  &kLess,   &kSum,      &kSumBroadcast, &kColumns,      &kTrace,     &kTraces, &kGray,      &kAddTo,
        &kMiddle, &kScale,  &kQuantize, &kMasked,       &kAnything,     &kFollows,   &kMany,   &kUnread,    &kTopK,
        &kHalves, &kBlocks, &kJoined,   &kPadded,       &kSlid,         &kVarlen,    &kSplit}) {
    m.def(op->schema());
  }
  m.def("forgetful(Tensor x, int k) -> Tensor");
}

TORCH_LIBRARY_IMPL(extension_cpp_shapes, CPU, m) {
  m.impl(kSame.name(), TORCH_BOX(&same));
  m.impl(kAdd3.name(), TORCH_BOX(&add3));
  m.impl(kRows.name(), TORCH_BOX(&rows));
  m.impl(kNorm.name(), TORCH_BOX(&norm));
  m.impl(kNormBackward.name(), TORCH_BOX(&norm_backward));
  m.impl(kAttention.name(), TORCH_BOX(&attention));
  m.impl(kMatmul.name(), TORCH_BOX(&matmul));
  m.impl(kEmbedding.name(), TORCH_BOX(&embedding));
  m.impl(kLookup.name(), TORCH_BOX(&lookup));
  m.impl(kWhere.name(), TORCH_BOX(&where));
  m.impl(kLess.name(), TORCH_BOX(&less));
  m.impl(kSum.name(), TORCH_BOX(&sum));
  m.impl(kSumBroadcast.name(), TORCH_BOX(&sum_broadcast));
  m.impl(kColumns.name(), TORCH_BOX(&columns));
  m.impl(kTrace.name(), TORCH_BOX(&trace));
  m.impl(kTraces.name(), TORCH_BOX(&traces));
  m.impl(kGray.name(), TORCH_BOX(&gray));
  m.impl(kAddTo.name(), TORCH_BOX(&add_to));
  m.impl(kMiddle.name(), TORCH_BOX(&middle));
  m.impl(kScale.name(), TORCH_BOX(&scale));
  m.impl(kQuantize.name(), TORCH_BOX(&quantize));
  m.impl(kMasked.name(), TORCH_BOX(&masked));
  m.impl(kAnything.name(), TORCH_BOX(&anything));
  m.impl(kFollows.name(), TORCH_BOX(&follows));
  m.impl(kTopK.name(), TORCH_BOX(&topk));
  m.impl(kHalves.name(), TORCH_BOX(&halves));
  m.impl(kBlocks.name(), TORCH_BOX(&blocks));
  m.impl(kJoined.name(), TORCH_BOX(&joined));
  m.impl(kPadded.name(), TORCH_BOX(&padded));
  m.impl(kSlid.name(), TORCH_BOX(&slid));
  m.impl(kVarlen.name(), TORCH_BOX(&varlen));
  m.impl(kSplit.name(), TORCH_BOX(&split));
  m.impl("forgetful", TORCH_BOX(&forgetful));
  m.impl(kMany.name(), TORCH_BOX(&many));
  m.impl(kUnread.name(), TORCH_BOX(&unread));
}
