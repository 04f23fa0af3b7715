// Row functors of tensors of several dtypes, for tests/test_mixed_rows.py: in a library of their own, and in a package.
#include "rows.h"

namespace extension_cpp::mixed_rows {

const Operator kMaskedSoftmax{"masked_softmax(Tensor x, Tensor mask) -> Tensor", "*rows n, *rows n:bool -> *rows n"};
const Operator kQuantise{"quantise(Tensor x) -> (Tensor, Tensor)", "*rows n -> *rows n:int8, *rows:float32"};
const Operator kCompared{
    "compared(Tensor x, Tensor k, Tensor s, Tensor d, Tensor? w) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n:int64, *rows n:sum, *rows n:float64, n:wide -> *rows n:bool, *rows n:float64, *rows n"};
const Operator kMaskedSums{
    "masked_sums(Tensor x, Tensor y, Tensor mask, Tensor limit) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n, *rows n:bool, *rows:int16 -> *rows n, *rows n:uint8, n:sum"};
const Operator kEights{
    "eights(Tensor x, Tensor five, Tensor half) -> (Tensor, Tensor)",
    "*rows n, *rows n:float8_e5m2, *rows n:bfloat16 -> *rows n:float8_e4m3fn, *rows:float32"};
const Operator kNumbered{
    "numbered(Tensor x, Tensor y, Tensor k, Tensor mask, Tensor w) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n, *rows:int64, n:bool, n:wide -> *rows n, *rows, n:sum"};
const Operator kBefore{
    "before(Tensor x, Tensor y, Tensor k) -> (Tensor, Tensor, Tensor)",
    "*rows n, *rows n, *rows 1:int32 -> *rows n, *rows n:int64, *rows:sum"};
const Operator kUnfit{"unfit_rows(Tensor x, Tensor k) -> Tensor", "*rows n, *rows n:any -> *rows n"};
const Operator kUnfitResult{"unfit_result(Tensor x, Tensor k) -> Tensor", "*rows n, *rows n:bool -> *rows n:bool"};

template <class T>
struct MaskedSoftmax {
  using A = acc_t<T>;
  T* output;
  PerElement<bool> mask;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto seen = row.keep([](A x, bool masked) { return masked ? -A(INFINITY) : x; }, row.elements(mask));
    const A max = row.max([](A, A x) { return x; }, seen);
    const auto powers = row.keep([=](A, A x) { return math::exp(x - max); }, seen);
    const Divisor<A> total = row.sum([](A, A power) { return power; }, powers);
    row.write(output, [=](A, A power) { return power / total; }, powers);
  }
};

template <class T>
struct Quantise {
  using A = acc_t<T>;
  int8_t* codes;
  float* scales;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A largest = row.max([](A x) { return std::fabs(x); });
    const Divisor<A> scale = largest > 0 ? largest / A(127) : A(1);
    row.write(codes, [=](A x) { return std::rint(x / scale); });
    write_per_row(row, scales, largest / A(127));
  }
};

// Whether x k is more than all of s, as the sum of w s; d + k; and x s + d.
template <class T>
struct Compared {
  using A = acc_t<T>;
  bool* more;
  double* shifted;
  T* products;
  PerElement<int64_t> k;
  PerElement<A> s;
  PerElement<double> d;
  backend::Parameter<T> w;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A sum = row.sum([](A, A w, A s) { return w * s; }, w, row.elements(s));
    row.write(more, [=](A x, int64_t k) { return x * A(k) > sum; }, row.elements(k));
    row.write(
        Outputs{shifted, products},
        [](A x, double d, int64_t k, A s) { return Results<double, A>{d + double(k), x * s + A(d)}; }, row.elements(d),
        row.elements(k), row.elements(s));
  }
};

// x - what the row has of y where the mask is, how often y is over the row's limit, up to each element, and the sums of
// x and y over the rows where the mask is.
template <class T>
struct MaskedSums {
  using A = acc_t<T>;
  using RowValues = Values<A, 1>;
  T* output;
  uint8_t* over;
  PerElement<bool> mask;
  const int16_t* limit;

  HOST_DEVICE RowElements<bool> row_elements() const { return {&mask}; }

  template <class Row>
  HOST_DEVICE RowValues of_row(Row& row) const {
    return {row.sum([](A, A y, bool there) { return there ? y : A(0); }, row.elements(mask))};
  }

  template <class Row>
  HOST_DEVICE void write(Row& row, const RowValues& sum) const {
    const A most = A(limit[row.index()]);
    row.write(
        Outputs{output, over},
        [=](A x, A y, bool there) {
          return WithSums<A, 2, 1>{{x - sum[0], y > most ? A(1) : A(0)}, {there ? x * y : A(0)}};
        },
        row.elements(mask));
  }
};

// x - half, and the largest of x + five half.
template <class T>
struct Eights {
  using A = acc_t<T>;
  Float8_e4m3fn* codes;
  float* largest;
  PerElement<Float8_e5m2> five;
  PerElement<BFloat16> half;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A most = row.max([](A x, A five, A half) { return x + five * half; }, row.elements(five), row.elements(half));
    row.write(codes, [](A x, A half) { return x - half; }, row.elements(half));
    write_per_row(row, largest, most);
  }
};

// x less what the row has of y before column k where the mask is, with w in that column; y + w there; and the sums of y
// behind it over the rows where the mask is.
template <class T>
struct Numbered {
  using A = acc_t<T>;
  struct Known {
    int64_t k;
  };
  struct RowValues {
    A sum;
    int64_t k;
  };
  T* output;
  T* picked;
  const int64_t* k;
  PerElement<bool> mask;
  backend::Parameter<T> w;

  HOST_DEVICE Known row_values(int64_t row) const { return {k[row]}; }
  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&w}}; }
  HOST_DEVICE RowElements<bool> row_elements() const { return {&mask}; }

  template <class Row>
  HOST_DEVICE RowValues of_row(Row& row, const Known& known) const {
    const int64_t place = known.k;
    write_per_row(row, picked, row.at(place, 1) + row.at(place, w));
    const A sum = row.sum(
        [=](A, A y, int64_t col, bool there) { return there && col < place ? y : A(0); }, row.columns(),
        row.elements(mask));
    return {sum, place};
  }

  template <class Row>
  HOST_DEVICE void write(Row& row, const RowValues& values) const {
    const A sum = values.sum;
    const int64_t place = values.k;
    row.write(
        output,
        [=](A x, A y, A w, int64_t col, bool there) {
          return WithSums<A, 1, 1>{{col == place ? w : x - sum}, {there && col > place ? y : A(0)}};
        },
        w, row.columns(), row.elements(mask));
  }
};

// x y before column k, and 0; the numbers of the columns; and the sum of what is before column k.
template <class T>
struct Before {
  using A = acc_t<T>;
  T* output;
  int64_t* numbers;
  A* sums;
  const int32_t* k;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const int64_t place = k[row.index()];
    const auto before = row.keep([=](A x, A y, int64_t col) { return col < place ? x * y : A(0); }, row.columns());
    const A sum = row.sum([](A, A, A xy) { return xy; }, before);
    write_per_row(row, sums, sum);
    row.write(
        Outputs{output, numbers}, [](A, A, int64_t col, A xy) { return Results<A, int64_t>{xy, col}; }, row.columns(),
        before);
  }
};

template <class T>
struct Unfit {
  T* output;
  PerElement<bool> k;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    using A = acc_t<T>;
    row.write(output, [](A x, bool k) { return k ? x : A(0); }, row.elements(k));
  }
};

Tensor masked_softmax(const Tensor& x, const Tensor& mask) {
  return rowwise<MaskedSoftmax>(kMaskedSoftmax, x, per_element(mask));
}

std::tuple<Tensor, Tensor> quantise(const Tensor& x) { return rowwise<Quantise, 2>(kQuantise, x); }

std::tuple<Tensor, Tensor, Tensor> compared(
    const Tensor& x, const Tensor& k, const Tensor& s, const Tensor& d, const std::optional<Tensor>& w) {
  return rowwise<Compared, 3>(kCompared, x, per_element(k), per_element(s), per_element(d), per_column(w, 1));
}

std::tuple<Tensor, Tensor, Tensor> masked_sums(
    const Tensor& x, const Tensor& y, const Tensor& mask, const Tensor& limit) {
  return rowwise_with_column_sums<MaskedSums, 2, 1>(kMaskedSums, x, y, per_element(mask), per_row(limit));
}

std::tuple<Tensor, Tensor> eights(const Tensor& x, const Tensor& five, const Tensor& half) {
  return rowwise<Eights, 2>(kEights, x, per_element(five), per_element(half));
}

std::tuple<Tensor, Tensor, Tensor> numbered(
    const Tensor& x, const Tensor& y, const Tensor& k, const Tensor& mask, const Tensor& w) {
  return rowwise_with_column_sums<Numbered, 2, 1>(kNumbered, x, y, per_row(k), per_column(mask), per_column(w));
}

std::tuple<Tensor, Tensor, Tensor> before(const Tensor& x, const Tensor& y, const Tensor& k) {
  return rowwise<Before, 3>(kBefore, x, y, per_row(k));
}

Tensor unfit_rows(const Tensor& x, const Tensor& k) { return rowwise<Unfit>(kUnfit, x, per_element(k)); }
Tensor unfit_result(const Tensor& x, const Tensor& k) { return rowwise<Unfit>(kUnfitResult, x, per_element(k)); }

}  // namespace extension_cpp::mixed_rows

TORCH_LIBRARY_FRAGMENT(NAMESPACE, m) {
  using namespace extension_cpp::mixed_rows;
  for (const extension_cpp::Operator* op :
       {&kMaskedSoftmax, &kQuantise, &kCompared, &kMaskedSums, &kEights, &kNumbered, &kBefore, &kUnfit,
        &kUnfitResult}) {
    m.def(op->schema());
  }
}

TORCH_LIBRARY_IMPL(NAMESPACE, BACKEND, m) {
  using namespace extension_cpp::mixed_rows;
  m.impl("masked_softmax", TORCH_BOX(&masked_softmax));
  m.impl("quantise", TORCH_BOX(&quantise));
  m.impl("compared", TORCH_BOX(&compared));
  m.impl("masked_sums", TORCH_BOX(&masked_sums));
  m.impl("eights", TORCH_BOX(&eights));
  m.impl("numbered", TORCH_BOX(&numbered));
  m.impl("before", TORCH_BOX(&before));
  m.impl("unfit_rows", TORCH_BOX(&unfit_rows));
  m.impl("unfit_result", TORCH_BOX(&unfit_result));
}
