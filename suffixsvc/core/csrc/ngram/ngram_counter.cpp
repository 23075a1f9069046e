#include "ngram/ngram_counter.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "ngram/ngram_merge.h"
#include "ngram/ngram_run.h"

namespace suffixsvc {

namespace {

// LSD radix sort: one pass per 11 bits that differ, linear in the number of keys. Returns the sorted keys,
// which are in `keys` or in `scratch`, both of `size`.
template <unsigned K>
Key<K>* sort_keys(Key<K>* keys, Key<K>* scratch, std::size_t size, unsigned total_bits) {
    constexpr unsigned kDigit = 11;
    constexpr std::size_t kFew = 1u << 12;  // for fewer keys, the counters would cost more
    if (size < kFew) {
        std::sort(keys, keys + size);
        return keys;
    }
    const unsigned passes = (total_bits + kDigit - 1) / kDigit;
    std::vector<std::uint32_t> counts(std::size_t{passes} << kDigit);
    for (std::size_t i = 0; i < size; ++i)
        for (unsigned p = 0; p < passes; ++p)
            ++counts[(std::size_t{p} << kDigit) + keys[i].bits(p * kDigit, kDigit)];
    for (unsigned p = 0; p < passes; ++p) {
        std::uint32_t* const of = counts.data() + (std::size_t{p} << kDigit);
        if (of[keys[0].bits(p * kDigit, kDigit)] == size) continue;  // all keys agree in this digit
        std::uint32_t at = 0;
        for (std::size_t d = 0; d < std::size_t{1} << kDigit; ++d) at += std::exchange(of[d], at);
        for (std::size_t i = 0; i < size; ++i) scratch[of[keys[i].bits(p * kDigit, kDigit)]++] = keys[i];
        std::swap(keys, scratch);
    }
    return keys;
}

// A sorted block of the arena, as a source of a merge.
template <unsigned K>
struct SortedBlock {
    const Key<K>* keys;
    const Key<K>* end;
    const std::uint32_t* counts;

    bool done() const { return keys == end; }
    const Key<K>& key() const { return *keys; }
    std::uint32_t count() const { return *counts; }
    void next() {
        ++keys;
        ++counts;
    }
};

template <unsigned K>
class Counter final : public NgramCounter {
  public:
    // The arrays have their final size; untouched pages take no memory.
    Counter(const KeyShape& shape, std::size_t fresh, std::size_t arena)
        : shape_(shape),
          fresh_capacity_(fresh),
          fresh_(std::make_unique_for_overwrite<Key<K>[]>(fresh)),
          scratch_(std::make_unique_for_overwrite<Key<K>[]>(fresh)),
          capacity_(arena),
          keys_(std::make_unique_for_overwrite<Key<K>[]>(arena)),
          counts_(std::make_unique_for_overwrite<std::uint32_t[]>(arena)) {}

    void add_text(std::span<const Token> text, std::size_t first) override {
        for_windows<K>(shape_, text.data(), text.size(), first, [this](const Key<K>& key) {
            fresh_[fresh_size_++] = key;
            if (fresh_size_ == fresh_capacity_) flush_fresh();
        });
        tokens_ += text.size();
    }

    std::size_t room() const override { return capacity_ - size_ - fresh_size_; }

    std::uint64_t tokens() const override { return tokens_; }

    void spill(const FilePath& path) override {
        flush_fresh();
        std::vector<SortedBlock<K>> sources;
        for (std::size_t i = 0; i < ends_.size(); ++i) {
            const std::size_t begin = i > 0 ? ends_[i - 1] : 0;
            sources.push_back({keys_.get() + begin, keys_.get() + ends_[i], counts_.get() + begin});
        }
        KWayMerge<K, SortedBlock<K>> merge(sources);
        RunWriter<K> writer(path);
        for (Key<K> key; !merge.done();) {
            const std::uint64_t count = merge.take(key);
            writer.put(key, count);
        }
        writer.finish(shape_, tokens_);
        ends_.clear();
        size_ = 0;
        tokens_ = 0;
    }

  private:
    // Moves the fresh windows into the arena, sorted and without duplicates.
    void flush_fresh() {
        if (fresh_size_ == 0) return;
        const Key<K>* sorted = sort_keys(fresh_.get(), scratch_.get(), fresh_size_, shape_.total_bits());
        for (std::size_t i = 0; i < fresh_size_;) {
            std::size_t j = i + 1;
            while (j < fresh_size_ && sorted[j] == sorted[i]) ++j;
            keys_[size_] = sorted[i];
            counts_[size_++] = static_cast<std::uint32_t>(j - i);
            i = j;
        }
        ends_.push_back(size_);
        fresh_size_ = 0;
    }

    const KeyShape shape_;
    const std::size_t fresh_capacity_;
    std::size_t fresh_size_ = 0;
    std::unique_ptr<Key<K>[]> fresh_;
    std::unique_ptr<Key<K>[]> scratch_;
    const std::size_t capacity_;
    std::size_t size_ = 0;
    std::unique_ptr<Key<K>[]> keys_;
    std::unique_ptr<std::uint32_t[]> counts_;
    std::vector<std::size_t> ends_;  // ends of the sorted blocks of the arena
    std::uint64_t tokens_ = 0;
};

}  // namespace

std::unique_ptr<NgramCounter> NgramCounter::make(unsigned lowest, unsigned highest,
                                                 std::int64_t largest_token, std::size_t memory_bytes) try {
    if (lowest < 1 || lowest > highest || highest > kMaxOrder)
        throw FileFault::invalid("orders must satisfy 1 <= lowest <= highest <= 16", "",
                                 std::to_string(lowest) + " .. " + std::to_string(highest));
    if (largest_token < 0 || largest_token > std::numeric_limits<Token>::max())
        throw FileFault::invalid("largest_token must be in 0 .. 2147483647", "",
                                 std::to_string(largest_token));
    const auto bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(largest_token) + 1));
    const KeyShape shape{lowest, highest, bits};
    auto counter = with_key_words(shape.words(), [&]<unsigned K>() -> std::unique_ptr<NgramCounter> {
        // Larger blocks remove more duplicates and are fewer; half a million keys still sort mostly within
        // the processor's caches.
        const std::size_t fresh =
            std::clamp<std::size_t>(memory_bytes / 8 / sizeof(Key<K>), 1u << 10, 1u << 19);
        const std::size_t sorting = 2 * fresh * sizeof(Key<K>);
        if (memory_bytes < 2 * sorting)
            throw FileFault::invalid("memory_bytes must be some megabytes at least", "",
                                     std::to_string(memory_bytes) + " bytes");
        const std::size_t arena = (memory_bytes - sorting) / (sizeof(Key<K>) + sizeof(std::uint32_t));
        return std::make_unique<Counter<K>>(shape, fresh, arena);
    });
    counter->largest_token_ = largest_token;
    return counter;
} catch (const std::bad_alloc&) {
    throw FileFault(FileFault::Kind::no_memory, "memory_bytes must be available", "",
                    std::to_string(memory_bytes >> 20) + " MiB");
}

void NgramCounter::add(std::span<const Token> tokens, std::span<const std::int64_t> ends,
                       std::span<const std::int64_t> contexts) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] < 0 || tokens[i] > largest_token_)
            throw FileFault::invalid("token ids must be in range", "0 .. " + std::to_string(largest_token_),
                                     std::to_string(tokens[i]) + " at position " + std::to_string(i));
    if (tokens.size() > room())
        throw FileFault::invalid("tokens must fit the room of the counter", std::to_string(room()),
                                 std::to_string(tokens.size()));
    const auto size = static_cast<std::int64_t>(tokens.size());
    std::int64_t begin = 0;
    bool whole = ends.size() == contexts.size();
    for (std::size_t i = 0; whole && i < ends.size(); begin = ends[i++])
        whole = begin <= ends[i] && ends[i] <= size && contexts[i] >= 0 && contexts[i] <= ends[i] - begin;
    if (!whole || begin != size)
        throw FileFault::invalid("ends and contexts must divide the tokens into texts", "", "");
    std::size_t from = 0;
    for (std::size_t i = 0; i < ends.size(); from = static_cast<std::size_t>(ends[i++]))
        add_text(tokens.subspan(from, static_cast<std::size_t>(ends[i]) - from),
                 static_cast<std::size_t>(contexts[i]));
}

}  // namespace suffixsvc
