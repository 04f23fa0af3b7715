#include "cpu/elementwise.h"

#include "cpu/lines.h"
#include "few.h"
#include "indexing.h"
#include "layout.h"

#include <memory>

namespace extension_cpp::cpu::detail {

namespace {

// Bytes of each operand for which there is room to copy what does not lie in a row; with their copies they stay in the
// L1 cache.
constexpr int64_t kChunkBytes = 4096;

// Bytes from which on rows of a matrix with a number for each are worked on where they are.
constexpr int64_t kLongRow = 2 * kLineBytes;

// Rows of an input with dense columns that are copied together: as many numbers as each column then gives, neighbours.
constexpr int64_t kSlabRows = 32;
// What the slab of an input takes at most, to stay in the L2 cache.
constexpr int64_t kSlabBytes = 1 << 19;

// What the stack has room for: operands, and bytes of copies.
constexpr size_t kFewOperands = 6;
constexpr size_t kFewBytes = kFewOperands * kChunkBytes;

// As Indexing, of any number of operands.
class Layouts : public MergedDims {
 public:
  explicit Layouts(const Operands& operands)
      : num_(static_cast<int>(1 + operands.num_inputs)), strides_(kMaxDims * num_), linear_(num_) {
    extension_cpp::detail::Few<Geometry, kFewOperands> geometries(num_);
    geometries.data()[0] = geometry(operands.outputs[0]);
    for (int k = 1; k < num_; ++k) {
      geometries.data()[k] = geometry(*operands.inputs[k - 1]);
    }
    static_cast<MergedDims&>(*this) = merge_dims(geometries.data(), num_, sizes_, strides_.data(), linear_.data());
  }

  int num() const { return num_; }
  int64_t size(int d) const { return sizes_[d].divisor(); }
  const Divider& divider(int d) const { return sizes_[d]; }
  int64_t stride(int d, int k) const { return strides_.data()[d * num_ + k]; }
  bool is_linear(int k) const { return linear_.data()[k]; }

 private:
  int num_;
  Divider sizes_[kMaxDims];
  extension_cpp::detail::Few<int64_t, kMaxDims * kFewOperands> strides_;
  extension_cpp::detail::Few<bool, kFewOperands> linear_;
};

// visit(at, offset, width) for every piece of a row among elements begin ... begin + count - 1 of operand k: the
// elements from begin + at on lie from `offset` on.
template <class Visit>
CPU_INLINE void visit_rows(const Layouts& layouts, int k, int64_t begin, int64_t count, const Visit& visit) {
  int64_t place[kMaxDims];
  int64_t offset = 0;
  for (int d = 0; d < layouts.dims; ++d) {
    const int64_t outer = layouts.divider(d).divide(begin);
    place[d] = begin - outer * layouts.size(d);
    offset += place[d] * layouts.stride(d, k);
    begin = outer;
  }
  for (int64_t at = 0; at < count;) {
    const int64_t width = std::min(layouts.size(0) - place[0], count - at);
    visit(at, offset, width);
    at += width;
    offset -= place[0] * layouts.stride(0, k);
    place[0] = 0;
    for (int d = 1; d < layouts.dims; ++d) {  // carry
      offset += layouts.stride(d, k);
      if (++place[d] < layouts.size(d)) {
        break;
      }
      offset -= place[d] * layouts.stride(d, k);
      place[d] = 0;
    }
  }
}

// Copies of elements of one size, whatever they are.
template <class Bits>
struct Copies {
  // Elements begin ... begin + count - 1 of operand k to `buffer`.
  CPU_CLONES static void gather(
      const Layouts& layouts, int k, const void* data, int64_t begin, int64_t count, void* buffer) {
    const int64_t stride = layouts.stride(0, k);
    if (stride == 0 && layouts.dims == 2) {
      repeat_numbers(layouts.size(0), static_cast<const Bits*>(data), layouts.stride(1, k), begin, count, buffer);
      return;
    }
    visit_rows(layouts, k, begin, count, [=](int64_t at, int64_t offset, int64_t width) {
      const Bits* const from = static_cast<const Bits*>(data) + offset;
      Bits* const to = static_cast<Bits*>(buffer) + at;
      if (stride == 0) {
        std::fill_n(to, width, *from);
      } else if (stride == 1) {
        std::copy_n(from, width, to);
      } else {
        for (int64_t j = 0; j < width; ++j) {
          to[j] = from[j * stride];
        }
      }
    });
  }

  // The same of an operand that is one number for each row of `cols`: as many rows as there are, without asking where
  // each of them begins.
  CPU_INLINE static void repeat_numbers(
      int64_t cols, const Bits* numbers, int64_t stride, int64_t begin, int64_t count, void* buffer) {
    Bits* to = static_cast<Bits*>(buffer);
    Bits* const end = to + count;
    numbers += begin / cols * stride;
    for (int64_t place = begin % cols; to < end; place = 0, numbers += stride) {
      const int64_t width = std::min<int64_t>(cols - place, end - to);
      const Bits number = *numbers;
      CPU_INDEPENDENT_LOOP
      for (int64_t j = 0; j < width; ++j) {
        to[j] = number;
      }
      to += width;
    }
  }

  // rows x cols elements of columns that are dense and lie `stride` elements apart, to rows that lie `pitch` apart.
  CPU_CLONES static void transpose(
      const void* data, int64_t stride, int64_t rows, int64_t cols, int64_t pitch, void* buffer) {
    const Bits* const from = static_cast<const Bits*>(data);
    Bits* const to = static_cast<Bits*>(buffer);
    constexpr int64_t kAhead = 16;  // columns; each is in a page of its own, of which nothing is read ahead
    for (int64_t col = 0; col < cols; ++col) {
      for (int64_t row = 0; row < rows; row += kLineBytes / sizeof(Bits)) {
        __builtin_prefetch(from + std::min(col + kAhead, cols - 1) * stride + row);
      }
      for (int64_t row = 0; row < rows; ++row) {
        to[row * pitch + col] = from[col * stride + row];
      }
    }
  }

  // `values` to elements begin ... begin + count - 1 of the output, operand 0.
  CPU_CLONES static void scatter(const Layouts& layouts, const void* values, int64_t begin, int64_t count, void* data) {
    const int64_t stride = layouts.stride(0, 0);
    visit_rows(layouts, 0, begin, count, [=](int64_t at, int64_t offset, int64_t width) {
      const Bits* const from = static_cast<const Bits*>(values) + at;
      Bits* const to = static_cast<Bits*>(data) + offset;
      for (int64_t j = 0; j < width; ++j) {
        to[j * stride] = from[j];
      }
    });
  }
};

template <class Call>
void with_bits(int64_t itemsize, const Call& call) {
  switch (itemsize) {
    case 1: return call(Copies<uint8_t>{});
    case 2: return call(Copies<uint16_t>{});
    case 4: return call(Copies<uint32_t>{});
    case 8: return call(Copies<uint64_t>{});
    default: throw std::runtime_error("elementwise: unknown item size");
  }
}

// Whether input k goes across the rows of the output: neighbours in the one lie far apart in the other. Copied chunk by
// chunk, a large one would come to the cache many times.
bool is_transposed(const Layouts& layouts, int k) {
  const int64_t inner = layouts.stride(0, k);
  bool is = false;
  for (int d = 1; d < layouts.dims; ++d) {
    is = is || (layouts.stride(d, k) > 0 && layouts.stride(d, k) < inner);
  }
  return is && layouts.numel >= kGrain;
}

// Elements from one row of a slab to the next: an odd number of lines of the cache, so that they do not compete for the
// same places in it.
int64_t slab_pitch(int64_t cols, int64_t itemsize) {
  return ((cols * itemsize + kLineBytes - 1) / kLineBytes | 1) * kLineBytes / itemsize;
}

// Whether an input is transposed, and copied slab by slab.
bool in_slabs(const Layouts& layouts, int k, int64_t itemsize) {
  const int64_t cols = layouts.size(0);
  return is_transposed(layouts, k) && layouts.dims == 2 && layouts.stride(1, k) == 1 && cols >= kSlabRows &&
         kSlabRows * slab_pitch(cols, itemsize) * itemsize <= kSlabBytes;
}

// The elements of one input, chunk by chunk, in a row: where they lie so already, there, else in a buffer. A row vector
// or a single number, which is the same in every chunk, is copied once.
class Reader {
 public:
  Reader() = default;
  Reader(const Layouts& layouts, int k, const char* data, int64_t itemsize, char* buffer)
      : layouts_(&layouts), k_(k), data_(data), itemsize_(itemsize), buffer_(buffer) {
    for (int d = 1; d < layouts.dims; ++d) {
      same_in_rows_ = same_in_rows_ && layouts.stride(d, k) == 0;
    }
    same_everywhere_ = same_in_rows_ && layouts.stride(0, k) == 0;
    if (in_slabs(layouts, k, itemsize)) {
      pitch_ = slab_pitch(layouts.size(0), itemsize);
      slab_.reset(new char[kSlabRows * pitch_ * itemsize]);
    }
  }

  // `place`: of the first element in its row.
  const char* read(int64_t begin, int64_t count, int64_t place) {
    if (layouts_->is_linear(k_)) {
      return data_ + begin * itemsize_;
    }
    if (slab_ != nullptr && place + count <= layouts_->size(0)) {
      return read_slab(layouts_->divider(0).divide(begin), place);
    }
    if (count <= held_ && (place == 0 || same_everywhere_)) {
      return buffer_;
    }
    if (layouts_->stride(0, k_) == 1 && place + count <= layouts_->size(0)) {
      return data_ + offset_of(begin) * itemsize_;
    }
    with_bits(itemsize_, [&](auto copies) { copies.gather(*layouts_, k_, data_, begin, count, buffer_); });
    held_ = same_everywhere_ || (same_in_rows_ && place == 0) ? count : 0;
    return buffer_;
  }

 private:
  const char* read_slab(int64_t row, int64_t place) {
    if (row < slab_begin_ || row >= slab_end_) {
      slab_begin_ = row;
      slab_end_ = std::min(row + kSlabRows, layouts_->size(1));
      with_bits(itemsize_, [&](auto copies) {
        copies.transpose(
            data_ + row * itemsize_, layouts_->stride(0, k_), slab_end_ - row, layouts_->size(0), pitch_, slab_.get());
      });
    }
    return slab_.get() + ((row - slab_begin_) * pitch_ + place) * itemsize_;
  }

  int64_t offset_of(int64_t i) const {
    int64_t offset = 0;
    for (int d = 0; d < layouts_->dims; ++d) {
      const int64_t outer = layouts_->divider(d).divide(i);
      offset += (i - outer * layouts_->size(d)) * layouts_->stride(d, k_);
      i = outer;
    }
    return offset;
  }

  const Layouts* layouts_;
  int k_;
  const char* data_;
  int64_t itemsize_;
  char* buffer_;
  bool same_in_rows_ = true;
  bool same_everywhere_ = false;
  int64_t held_ = 0;  // elements in the buffer that serve every chunk of the same start
  std::unique_ptr<char[]> slab_;
  int64_t pitch_ = 0;
  int64_t slab_begin_ = 0;  // rows
  int64_t slab_end_ = 0;
};

// elementwise() of contiguous copies, for operands of more dimensions than merge_dims holds.
void on_contiguous_copies(RowLoop loop, const void* formula, const Operands& operands) {
  std::vector<Tensor> results;
  for (size_t m = 0; m < operands.num_outputs; ++m) {
    results.push_back(new_empty(operands.outputs[m], operands.outputs[m].sizes()));
  }
  std::vector<Tensor> inputs;
  std::vector<const Tensor*> pointers;
  inputs.reserve(operands.num_inputs);
  for (size_t k = 0; k < operands.num_inputs; ++k) {
    pointers.push_back(&inputs.emplace_back(with_layout_of(results[0], *operands.inputs[k])));
  }
  elementwise(loop, formula, {operands.itemsizes, results.data(), results.size(), pointers.data(), pointers.size()});
  for (size_t m = 0; m < operands.num_outputs; ++m) {
    copy_into(operands.outputs[m], results[m]);
  }
}

// The loop, and what it is called for.
class Call {
 public:
  Call(RowLoop loop, const void* formula, const Operands& operands, const Layouts& layouts)
      : loop_(loop),
        formula_(formula),
        layouts_(layouts),
        output_bytes_(operands.itemsizes),
        input_bytes_(operands.itemsizes + operands.num_outputs),
        most_bytes_(*std::max_element(operands.itemsizes, input_bytes_ + operands.num_inputs)),
        chunk_(kChunkBytes / most_bytes_),
        outputs_(operands.num_outputs),
        inputs_(operands.num_inputs),
        row_bytes_(operands.num_inputs),
        are_numbers_(operands.num_inputs),
        cols_(layouts.size(0)),
        short_rows_(are_short_rows()) {
    for (size_t m = 0; m < operands.num_outputs; ++m) {
      outputs_.data()[m] = static_cast<char*>(operands.outputs[m].mutable_data_ptr());
    }
    for (size_t k = 0; k < operands.num_inputs; ++k) {
      const int operand = static_cast<int>(k) + 1;
      inputs_.data()[k] = static_cast<const char*>(operands.inputs[k]->const_data_ptr());
      row_bytes_.data()[k] = layouts.dims == 1 ? 0 : layouts.stride(1, operand) * input_bytes_[k];
      are_numbers_.data()[k] = is_number(operand);
    }
  }

  // Whether the loop goes through the rows of a matrix where they are.
  bool in_place() const { return !short_rows_ && is_matrix(); }

  // Elements begin ... end - 1, where they are.
  void on_rows(int64_t begin, int64_t end) const {
    Pointers<char*> outputs(outputs_.size());
    Pointers<const char*> inputs(inputs_.size());
    while (begin < end) {
      const int64_t row = begin / cols_;
      const int64_t place = begin - row * cols_;
      const int64_t rows = place == 0 ? std::max<int64_t>(1, (end - begin) / cols_) : 1;
      const int64_t count = std::min(cols_ - place, end - begin);
      for (size_t m = 0; m < outputs_.size(); ++m) {
        outputs.data()[m] = outputs_.data()[m] + begin * output_bytes_[m];
      }
      for (size_t k = 0; k < inputs_.size(); ++k) {
        inputs.data()[k] =
            inputs_.data()[k] + row * row_bytes_.data()[k] + (are_numbers_.data()[k] ? 0 : place * input_bytes_[k]);
      }
      loop_(formula_, {rows, count, outputs.data(), inputs.data(), row_bytes_.data(), are_numbers_.data()});
      begin += rows * count;
    }
  }

  // The same by way of copies of what does not lie in a row.
  void on_chunks(int64_t begin, int64_t end) const {
    Buffers buffers(outputs_.size() + inputs_.size());
    char* buffer = buffers.data();
    Pointers<char*> to(outputs_.size());
    Pointers<const char*> from(inputs_.size());
    extension_cpp::detail::Few<Reader, kFewOperands> readers(inputs_.size());
    extension_cpp::detail::Few<bool, kFewOperands> numbers(inputs_.size());
    std::fill_n(numbers.data(), inputs_.size(), false);  // what is one number is copied as any other row
    for (size_t m = 0; m < outputs_.size(); ++m, buffer += kChunkBytes) {
      to.data()[m] = buffer;
    }
    for (size_t k = 0; k < inputs_.size(); ++k, buffer += kChunkBytes) {
      readers.data()[k] = Reader(layouts_, static_cast<int>(k) + 1, inputs_.data()[k], input_bytes_[k], buffer);
    }
    // Chunks end where rows do, so that as many operands as can be are read in place: several short rows, one row, or
    // equal parts of a long one.
    const int64_t parts = (cols_ + chunk_ - 1) / chunk_;
    const int64_t longest = short_rows_ ? chunk_ / cols_ * cols_ : (cols_ + parts - 1) / parts;
    const bool linear = layouts_.is_linear(0);
    while (begin < end) {
      const int64_t place = begin - layouts_.divider(0).divide(begin) * cols_;
      const int64_t count = std::min({longest, short_rows_ && place == 0 ? longest : cols_ - place, end - begin});
      for (size_t k = 0; k < inputs_.size(); ++k) {
        from.data()[k] = readers.data()[k].read(begin, count, place);
      }
      for (size_t m = 0; m < outputs_.size() && linear; ++m) {
        to.data()[m] = outputs_.data()[m] + begin * output_bytes_[m];
      }
      loop_(formula_, {1, count, to.data(), from.data(), row_bytes_.data(), numbers.data()});
      for (size_t m = 0; m < outputs_.size() && !linear; ++m) {
        with_bits(output_bytes_[m], [&](auto copies) {
          copies.scatter(layouts_, to.data()[m], begin, count, outputs_.data()[m]);
        });
      }
      begin += count;
    }
  }

 private:
  template <class P>
  using Pointers = extension_cpp::detail::Few<P, kFewOperands>;

  // kChunkBytes for each of some operands, as aligned as vectors like it.
  class Buffers {
   public:
    explicit Buffers(size_t operands) : lines_(operands * kChunkBytes / sizeof(Line)) {}

    char* data() { return reinterpret_cast<char*>(lines_.data()); }

   private:
    struct alignas(kLineBytes) Line {
      char bytes[kLineBytes];
    };

    extension_cpp::detail::Few<Line, kFewBytes / sizeof(Line)> lines_;
  };

  // Whether operand k is one number throughout a row.
  bool is_number(int k) const { return layouts_.stride(0, k) == 0; }

  // Whether the outputs lie in a row, as a matrix whose rows lie so in every input, too, or are one number each.
  bool is_matrix() const {
    bool is = layouts_.dims <= 2 && layouts_.is_linear(0);
    for (int k = 1; k < layouts_.num(); ++k) {
      is = is && (layouts_.stride(0, k) == 1 || is_number(k));
    }
    return is;
  }

  // Whether several rows are copied, to be worked on at a time, so that nothing is asked for each of them. But what is
  // one number for a row is copied for it, and so would be what comes from a slab.
  bool are_short_rows() const {
    bool has_numbers = false;
    for (int k = 1; k < layouts_.num() && layouts_.dims > 1; ++k) {
      if (in_slabs(layouts_, k, input_bytes_[k - 1])) {
        return false;
      }
      has_numbers = has_numbers || (is_number(k) && layouts_.stride(1, k) != 0);
    }
    if (has_numbers && is_matrix()) {
      return cols_ * most_bytes_ < kLongRow;
    }
    return layouts_.dims > 1 && (has_numbers ? 8 : 2) * cols_ <= chunk_;
  }

  RowLoop loop_;
  const void* formula_;
  const Layouts& layouts_;
  const int64_t* output_bytes_;  // of an element
  const int64_t* input_bytes_;
  int64_t most_bytes_;
  int64_t chunk_;  // elements in kChunkBytes
  Pointers<char*> outputs_;
  Pointers<const char*> inputs_;
  Pointers<int64_t> row_bytes_;  // from one row of an input to the next
  Pointers<bool> are_numbers_;   // inputs, throughout a row
  int64_t cols_;
  bool short_rows_;  // of which several are worked on at a time
};

}  // namespace

void elementwise(RowLoop loop, const void* formula, const Operands& operands) {
  const Layouts layouts(operands);
  if (!layouts.fits) {
    on_contiguous_copies(loop, formula, operands);
    return;
  }
  if (layouts.numel == 0) {
    return;
  }
  for (size_t k = 0; k < operands.num_inputs; ++k) {
    const int operand = static_cast<int>(k) + 1;
    if (is_transposed(layouts, operand) && !in_slabs(layouts, operand, operands.itemsizes[operands.num_outputs + k])) {
      const Tensor laid_out = with_layout_of(operands.outputs[0], *operands.inputs[k]);
      std::vector<const Tensor*> inputs(operands.inputs, operands.inputs + operands.num_inputs);
      inputs[k] = &laid_out;
      Operands others = operands;
      others.inputs = inputs.data();
      elementwise(loop, formula, others);
      return;
    }
  }
  const Call call(loop, formula, operands, layouts);
  if (call.in_place()) {
    parallel_for(0, layouts.numel, kGrain, [&](int64_t begin, int64_t end) { call.on_rows(begin, end); });
  } else {
    parallel_for(0, layouts.numel, kGrain, [&](int64_t begin, int64_t end) { call.on_chunks(begin, end); });
  }
}

}  // namespace extension_cpp::cpu::detail
