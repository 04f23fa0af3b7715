// The dtypes of the tensors that a formula takes and gives, which the types of its arguments and results say: one
// formula, and one pass over memory, for tensors of several.
//
//   template <class A>
//   struct Masked {
//     A value;
//
//     HOST_DEVICE A operator()(A input, bool mask) const { return mask ? value : input; }
//   };
//
//   A            the operator's own dtype, for all four floating ones: half types are computed in float
//   SumType<A>   that of the arithmetic, ":sum" in a line of shapes: float, or double where the own one is double
//   bool, uint8_t, int8_t, int16_t, int32_t, int64_t, float, double, Half, BFloat16, Float8_e4m3fn, Float8_e5m2
//                exactly that dtype; the last four become numbers of the arithmetic by A(x)
//
// Several results that are not all A are Results<A, SumType<A>, bool>.
#pragma once

#include "dispatch.h"
#include "host_device.h"
#include "values.h"

#include <cstdint>
#include <type_traits>
#include <utility>

namespace extension_cpp {

// An A of a tensor that holds the type of the arithmetic.
template <class A>
struct SumType {
  A value;

  SumType() = default;
  HOST_DEVICE SumType(A given) : value(given) {}    // NOLINT(google-explicit-constructor)
  HOST_DEVICE operator A() const { return value; }  // NOLINT(google-explicit-constructor)
};

namespace detail {

template <size_t K, class T>
struct Slot {
  T value;
};

template <class Places, class... T>
struct Slots;

template <size_t... K, class... T>
struct Slots<std::index_sequence<K...>, T...> : Slot<K, T>... {
  Slots() = default;
  HOST_DEVICE explicit Slots(const T&... values) : Slot<K, T>{values}... {}
};

// The slot of a number; its type follows.
template <size_t K, class T>
HOST_DEVICE T& slot_at(Slot<K, T>& slot) {
  return slot.value;
}

template <size_t K, class T>
HOST_DEVICE const T& slot_at(const Slot<K, T>& slot) {
  return slot.value;
}

}  // namespace detail

template <class... R>
struct Results : detail::Slots<std::index_sequence_for<R...>, R...> {
  HOST_DEVICE Results(const R&... results)  // NOLINT(google-explicit-constructor)
      : detail::Slots<std::index_sequence_for<R...>, R...>(results...) {}
};

// Several outputs of one pass of row.write, pointers to [rows, cols] each, of any types.
template <class... U>
struct Outputs : detail::Slots<std::index_sequence_for<U...>, U*...> {
  HOST_DEVICE Outputs(U*... outputs)  // NOLINT(google-explicit-constructor)
      : detail::Slots<std::index_sequence_for<U...>, U*...>(outputs...) {}
};

template <class... R>
struct ResultCounts<Results<R...>> {
  static constexpr int results = sizeof...(R);
  static constexpr int terms = 0;
};

namespace detail {

template <class... T>
struct Types {};

// What an argument or a result stands for.
struct Own {};
struct OwnSum {};

template <class InFloat, class InDouble>
struct ElementOf {
  static_assert(std::is_same_v<InFloat, InDouble>, "a formula takes and gives A, SumType<A> and types of tensors");
  using type = InFloat;
};
template <>
struct ElementOf<float, double> {
  using type = Own;
};
template <>
struct ElementOf<SumType<float>, SumType<double>> {
  using type = OwnSum;
};

template <class InFloat, class InDouble>
struct ElementsOf;
template <class... F, class... D>
struct ElementsOf<Types<F...>, Types<D...>> {
  using type = Types<typename ElementOf<F, D>::type...>;
};

template <class R>
struct ListOf {
  using type = Types<R>;
};
template <class... R>
struct ListOf<Results<R...>> {
  using type = Types<R...>;
};

// A type as often as there are indices.
template <class A, size_t>
using Same = A;

template <class A, size_t... K>
Types<Same<A, K>...> repeated(std::index_sequence<K...>);

template <class A, int N>
struct ListOf<Values<A, N>> {
  using type = decltype(repeated<A>(std::make_index_sequence<N>()));
};
template <class A, int N, int C>
struct ListOf<WithSums<A, N, C>> : ListOf<Values<A, N>> {};

// Of a call that can be looked at; not of one that is overloaded or a template, which is of A alone.
template <class Call>
struct SignatureOf;
template <class Of, class R, class... E>
struct SignatureOf<R (Of::*)(E...) const> {
  using returned = std::decay_t<R>;
  using results = typename ListOf<returned>::type;
  using elements = Types<std::decay_t<E>...>;
};
template <class Of, class R, class... E>
struct SignatureOf<R (Of::*)(E...) const noexcept> : SignatureOf<R (Of::*)(E...) const> {};

template <class R>
constexpr bool is_results = false;
template <class... R>
constexpr bool is_results<Results<R...>> = true;

template <class InFloat, class InDouble, class = void>
struct SignaturesOf {
  static constexpr bool mixed = false;
};
template <class InFloat, class InDouble>
struct SignaturesOf<
    InFloat, InDouble,
    std::void_t<
        typename SignatureOf<decltype(&InFloat::operator())>::results,
        typename SignatureOf<decltype(&InDouble::operator())>::results>> {
  template <class... E>
  static constexpr bool has_others(Types<E...>) {
    return !(std::is_same_v<E, Own> && ...);
  }

  using F = SignatureOf<decltype(&InFloat::operator())>;
  using D = SignatureOf<decltype(&InDouble::operator())>;
  using results = typename ElementsOf<typename F::results, typename D::results>::type;
  using elements = typename ElementsOf<typename F::elements, typename D::elements>::type;
  // Results, of whatever: other loops know Values.
  static constexpr bool mixed = is_results<typename F::returned> || has_others(results()) || has_others(elements());
};

template <template <class> class F>
using Signatures = SignaturesOf<F<float>, F<double>>;

// Whether a formula takes or gives several dtypes.
template <template <class> class F>
constexpr bool is_mixed = Signatures<F>::mixed;

// What the results of a formula stand for, and its arguments, of so many.
template <template <class> class F, size_t M>
constexpr auto results_of() {
  if constexpr (is_mixed<F>) {
    return typename Signatures<F>::results();
  } else {
    return decltype(repeated<Own>(std::make_index_sequence<M>()))();
  }
}

template <template <class> class F, size_t K>
constexpr auto elements_of() {
  if constexpr (is_mixed<F>) {
    return typename Signatures<F>::elements();
  } else {
    return decltype(repeated<Own>(std::make_index_sequence<K>()))();
  }
}

// What is in memory, where the own dtype is T.
template <class T, class Element>
struct StoredAs {
  using type = Element;
};
template <class T>
struct StoredAs<T, Own> {
  using type = T;
};
template <class T>
struct StoredAs<T, OwnSum> {
  using type = acc_t<T>;
};
template <class T, class Element>
using stored_as = typename StoredAs<T, Element>::type;

// A bool is any byte, where bytes are viewed as bools: PyTorch takes what is not 0 for true, C++ what is not 1 for a
// number of its own.
HOST_DEVICE inline bool is_true(const bool& element) { return reinterpret_cast<const unsigned char&>(element) != 0; }

// What the formula gets of an element that is in memory, and what is stored of its result.
template <class T, class Element>
HOST_DEVICE auto as_argument(const stored_as<T, Element>& element) {
  if constexpr (std::is_same_v<Element, Own>) {
    return static_cast<acc_t<T>>(element);
  } else if constexpr (std::is_same_v<Element, OwnSum>) {
    return SumType<acc_t<T>>(element);
  } else if constexpr (std::is_same_v<Element, bool>) {
    return is_true(element);
  } else {
    return element;
  }
}

template <class U>
constexpr bool is_narrow_float = std::is_same_v<U, Half> || std::is_same_v<U, BFloat16> ||
                                 std::is_same_v<U, Float8_e4m3fn> || std::is_same_v<U, Float8_e5m2>;

// The same where the type in memory says all.
template <class U>
HOST_DEVICE auto as_value(const U& element) {
  if constexpr (is_narrow_float<U>) {
    return static_cast<float>(element);
  } else {
    return as_argument<float, U>(element);
  }
}

// Result k of what a formula returned.
template <size_t K, class... R>
HOST_DEVICE auto result_at(const Results<R...>& results) {
  return slot_at<K>(results);
}
template <size_t K, class A, int N>
HOST_DEVICE auto result_at(const Values<A, N>& results) {
  return results[K];
}
template <size_t K, class A, int N, int C>
HOST_DEVICE auto result_at(const WithSums<A, N, C>& made) {
  return made.results[K];
}
template <size_t K, class R>
HOST_DEVICE auto result_at(const R& result) {
  static_assert(K == 0);
  return result;
}

template <class T>
constexpr ScalarType dtype_of_type() {
  if constexpr (std::is_same_v<T, bool>) {
    return ScalarType::Bool;
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    return ScalarType::Byte;
  } else if constexpr (std::is_same_v<T, int8_t>) {
    return ScalarType::Char;
  } else if constexpr (std::is_same_v<T, int16_t>) {
    return ScalarType::Short;
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return ScalarType::Int;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return ScalarType::Long;
  } else if constexpr (std::is_same_v<T, Half>) {
    return ScalarType::Half;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return ScalarType::BFloat16;
  } else if constexpr (std::is_same_v<T, Float8_e4m3fn>) {
    return ScalarType::Float8_e4m3fn;
  } else if constexpr (std::is_same_v<T, Float8_e5m2>) {
    return ScalarType::Float8_e5m2;
  } else if constexpr (std::is_same_v<T, float>) {
    return ScalarType::Float;
  } else {
    static_assert(std::is_same_v<T, double>, "no tensor holds elements of this type");
    return ScalarType::Double;
  }
}

// The dtype of a tensor of such elements.
template <class Element>
ScalarType dtype_of_element(ScalarType own) {
  if constexpr (std::is_same_v<Element, Own>) {
    return own;
  } else if constexpr (std::is_same_v<Element, OwnSum>) {
    return sum_dtype(own);
  } else {
    return dtype_of_type<Element>();
  }
}

}  // namespace detail

}  // namespace extension_cpp
