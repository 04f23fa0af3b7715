// The line that says the shapes of an operator's tensors, in NumPy's notation for generalised ufuncs (NEP 5) and more:
// what it means, and what is wrong with it. Free of torch, so that tests/test_notation.py compiles it by itself;
// extension_cpp/notation.py reads the same lines in the same words.
//
//   fused_op(Tensor input, Tensor bias, float scale=1.0) -> Tensor     *rows n, n -> *rows n
//
// One shape for each tensor of the schema, arguments first (those that are written to among them), then results. In a
// shape stand
//   n        one size, the same wherever the name stands
//   *rows    any number of dimensions, the same wherever the name stands: the operator computes each of their entries
//            by itself, as a batch
//   *all     the same as another name, but as a whole, as what is summed over everything: no batch joins them
//   ...      any number of dimensions that broadcast
//   3        one size, exactly this
//   k        where the schema has an `int k`, or a SymInt: that number, which check() then takes beside the tensors
//   2n       twice n: of an argument one size, of which n is half. So in sums, without spaces, 2n+1, n+m, n-k+1: of an
//            argument where all names but one are known from what comes before
//   _  *_    one size, or any number of dimensions, of which nothing else is said
//   ()       no dimension
//   =weight  of a result: all dimensions of the argument weight, whose gradient it is, a sum where weight broadcasts;
//            others of ... then broadcast to the first
// and after them, where it is not that of the first tensor without one, which is floating, the dtype
//   :sum     the type of the arithmetic: float64 for float64, else float32
//   :wide    as the first, or float32 where that is a half type
//   :int64   or another of kDtypeNames, which are torch's: :int32, :bool, :float32, :float8_e4m3fn, ...
//   :any     whichever comes
//   :weight  that of another tensor, also of one that comes later; a result whose tensor is None has shape (0,), as one
//            =weight then has
// Of a list, Tensor[], every tensor has the shape; before the dtype, [64] says that there are at most so many. A
// Tensor? that is None has none. What is written to, Tensor(a!), is of any layout in which no two elements share
// memory, and shares none with another argument, but for one that is only read and is the very same.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace extension_cpp {

// What the checks keep on the stack.
constexpr size_t kMaxTensors = 16;
constexpr size_t kMaxSymbols = 16;

constexpr std::array<std::string_view, 14> kDtypeNames = {
    "bool",     "uint8",   "int8",    "int16",     "int32",      "int64",         "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"};

enum class DtypeRule : uint8_t { kLeader, kSum, kWide, kExact, kAny, kArgument };

// So many times the size of a name.
struct Term {
  int64_t times;
  int symbol;

  bool operator==(const Term& other) const { return times == other.times && symbol == other.symbol; }
};

struct Dim {
  static constexpr int kLiteral = -1;
  static constexpr int kAnything = -2;
  static constexpr int kSum = -3;  // of terms and of `size`

  int symbol;        // which of the names, or one of the above
  int64_t size = 0;  // of a literal
  std::vector<Term> terms = {};
  std::string spelled = {};  // of a sum

  // Of what has one meaning in the whole line.
  bool operator==(const Dim& other) const {
    return symbol == other.symbol && size == other.size && terms == other.terms;
  }

  bool names(int name) const {
    return symbol == name ||
           std::any_of(terms.begin(), terms.end(), [&](const Term& term) { return term.symbol == name; });
  }
};

struct Shape {
  std::vector<Dim> dims;
  int star = -1;  // which of dims stands for any number of dimensions
  DtypeRule dtype = DtypeRule::kLeader;
  int dtype_index = -1;  // kExact: in kDtypeNames, kArgument: in Notation::arguments
  int like = -1;         // which of Notation::arguments has all dimensions of a result, which then has none here
  int64_t most = -1;     // tensors of a list, if that is limited
  size_t position = 0;   // in the line
};

// A tensor among the arguments of a schema, or several.
struct TensorArgument {
  std::string name;
  bool optional = false;
  bool list = false;
  bool written = false;

  bool always_given() const { return !optional && !list; }
};

struct Notation {
  std::string name;  // of the operator
  std::vector<TensorArgument> arguments;
  std::vector<Shape> inputs, outputs;
  std::vector<std::string> symbols;  // as spelled: "n", "*rows", "..."
  std::vector<int> numbers;          // those of them that are numbers among the arguments, in the order of the schema
  int broadcast = -1;                // which of the symbols is "..."
  bool to_first = false;             // "..." is what it is of the first tensor, to which others broadcast
  int leader = -1;                   // the first tensor without a dtype of its own
  bool elementwise = false;          // no shape has single dimensions: outputs keep the layout of the inputs
  bool broadcasts = false;           // every input broadcasts to the first result: its shape ends as that does
  bool broadcasts_to_first = false;  // so does every input, and every result, to the first input
  bool sums_in_results = false;

  std::string error;  // with the line and the place in it; empty where there is none
};

// The name in a schema, before its arguments.
std::string operator_name(std::string_view schema);

// Throws nothing that is about the line: what is wrong stands in the result.
Notation parse_notation(std::string_view schema, std::string_view line);

}  // namespace extension_cpp
