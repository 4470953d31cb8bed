// Memory that is taken once and used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace octavo {

// Grows to the largest size asked for; what it held is lost when it grows.
template <typename T>
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // False where there is no memory for it.
  bool reserve(size_t count) {
    if (count <= count_) return true;
    std::free(data_);
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    count_ = data_ ? count : 0;
    return data_ != nullptr;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace octavo
