#include "ngram/ngram_counter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ngram/ngram_merge.h"
#include "ngram/ngram_run.h"
#include "ngram/ngram_sort.h"
#include "ngram/ngram_words.h"

namespace suffixsvc {

namespace {

// A sorted block of the arena, as a source of a merge.
template <unsigned K>
class SortedBlock {
  public:
    SortedBlock(const Key<K>* keys, const std::uint32_t* counts, std::size_t size)
        : keys_(keys), counts_(counts), end_(keys + size) {}
    bool done() const { return keys_ == end_; }
    const Key<K>& key() const { return *keys_; }
    std::uint32_t count() const { return *counts_; }
    void next() {
        ++keys_;
        ++counts_;
    }

  private:
    const Key<K>* keys_;
    const std::uint32_t* counts_;
    const Key<K>* end_;
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

    void add(std::span<const Token> text, std::size_t first) override {
        for_windows<K>(shape_, text.data(), text.size(), first, [this](const Key<K>& key) {
            fresh_[fresh_size_++] = key;
            if (fresh_size_ == fresh_capacity_) flush_fresh();
        });
        tokens_ += text.size();
    }

    std::size_t room() const override { return capacity_ - size_ - fresh_size_; }

    std::uint64_t tokens() const override { return tokens_; }

    FileFault spill(const std::string& path) override {
        flush_fresh();
        std::vector<SortedBlock<K>> sources;
        for (std::size_t i = 0; i < ends_.size(); ++i) {
            const std::size_t begin = i > 0 ? ends_[i - 1] : 0;
            sources.emplace_back(keys_.get() + begin, counts_.get() + begin, ends_[i] - begin);
        }
        KWayMerge<K, SortedBlock<K>> merge(sources);
        RunWriter<K> writer;
        if (!writer.create(path)) return writer.fault();
        Key<K> key;
        while (!merge.done()) {
            const std::uint64_t count = merge.take(key);
            writer.put(key, count);
        }
        if (!writer.finish(shape_, tokens_)) return writer.fault();
        ends_.clear();
        size_ = 0;
        tokens_ = 0;
        return {};
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

std::unique_ptr<NgramCounter> make_ngram_counter(const KeyShape& shape, std::size_t memory_bytes) {
    return with_key_words(shape.words(), [&]<unsigned K>() -> std::unique_ptr<NgramCounter> {
        // Larger blocks remove more duplicates and are fewer; half a million keys still sort mostly within
        // the processor's caches.
        const std::size_t fresh =
            std::clamp<std::size_t>(memory_bytes / 8 / sizeof(Key<K>), 1u << 10, 1u << 19);
        const std::size_t sorting = 2 * fresh * sizeof(Key<K>);
        if (memory_bytes < 2 * sorting) return nullptr;
        const std::size_t arena = (memory_bytes - sorting) / (sizeof(Key<K>) + sizeof(std::uint32_t));
        return std::make_unique<Counter<K>>(shape, fresh, arena);
    });
}

}  // namespace suffixsvc
