// Row operators, for both backends: what is done with each row of a [rows, cols] matrix (layer norm, softmax, ...).
//
// A functor says what happens to one row; each backend lends it the row in its own way. cuda/rows.cuh and cpu/rows.h
// say how; row.sum, row.max, row.write and row.add_to_columns are the same. A functor may also be given segments of
// rows (Split), so that few long rows keep all of the machine busy, and leave partial results for a second launch.
//
//   template <class T>
//   struct Softmax {
//     static constexpr bool kKeep = true;  // passes over the row more than once
//     T* output;                           // [rows, cols]
//
//     template <class Row>
//     HOST_DEVICE void operator()(Row& row) const {
//       using A = acc_t<T>;
//       const A max = row.max([](A x) { return x; });
//       const A total = row.sum([=](A x) { return math::exp(x - max); });
//       row.write(output, [=](A x) { return math::exp(x - max) / total; });
//     }
//   };
//   backend::launch_rows<T>(like, Softmax<T>{output}, std::array{input}, rows, cols);
#pragma once

#include "backend.h"
#include "elementary.h"
#include "values.h"

#ifdef __CUDACC__
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"
#else
#include "cpu/rows.h"
#include "cpu/vector.h"
#endif
