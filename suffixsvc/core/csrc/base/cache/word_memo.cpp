#include "base/cache/word_memo.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

namespace suffixsvc {

namespace {

bool is_letter(char c) {
    const auto lower = static_cast<unsigned char>(c | 0x20);
    return lower >= 'a' && lower <= 'z';
}

std::uint64_t hash_of(std::string_view word) { return std::hash<std::string_view>()(word); }

struct Entry {
    std::uint64_t hash = 0;
    std::uint32_t word = 0;    // offset of the word's bytes in bytes_
    std::uint32_t tokens = 0;  // offset of its tokens in tokens_
    std::uint32_t bytes = 0;   // length of the word; 0: free
    std::uint32_t count = 0;   // number of tokens
};

}  // namespace

// Open addressing, keyed by the words' bytes; at most half full.
class WordMemo::Table {
  public:
    const Entry* find(std::string_view word, std::uint64_t hash) const {
        for (std::size_t i = hash & mask();; i = (i + 1) & mask()) {
            const Entry& entry = entries_[i];
            if (!entry.bytes) return nullptr;
            if (entry.hash == hash && entry.bytes == word.size() &&
                std::memcmp(bytes_.data() + entry.word, word.data(), word.size()) == 0)
                return &entry;
        }
    }

    void add(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> tokens) {
        if (2 * (used_ + 1) > entries_.size()) grow();
        Entry& entry = free_entry(entries_, hash);
        entry = {hash, static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(tokens_.size()),
                 static_cast<std::uint32_t>(word.size()), static_cast<std::uint32_t>(tokens.size())};
        bytes_.insert(bytes_.end(), word.begin(), word.end());
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        ++used_;
    }

    void append_tokens(const Entry& entry, std::vector<std::int32_t>& to) const {
        const std::int32_t* first = tokens_.data() + entry.tokens;
        to.insert(to.end(), first, first + entry.count);
    }

    std::size_t bytes() const {
        return entries_.size() * sizeof(Entry) + bytes_.size() + tokens_.size() * sizeof(std::int32_t);
    }
    std::size_t used() const { return used_; }

  private:
    std::size_t mask() const { return entries_.size() - 1; }

    static Entry& free_entry(std::vector<Entry>& entries, std::uint64_t hash) {
        std::size_t i = hash & (entries.size() - 1);
        while (entries[i].bytes) i = (i + 1) & (entries.size() - 1);
        return entries[i];
    }

    void grow() {
        std::vector<Entry> wider(2 * entries_.size());
        for (const Entry& entry : entries_)
            if (entry.bytes) free_entry(wider, entry.hash) = entry;
        entries_ = std::move(wider);
    }

    std::vector<Entry> entries_ = std::vector<Entry>(1024);
    std::vector<char> bytes_;
    std::vector<std::int32_t> tokens_;
    std::size_t used_ = 0;
};

// Offsets are 32 bits wide.
WordMemo::WordMemo(const WordCuts& cuts, std::size_t memory_bytes)
    : cuts_(cuts),
      memory_bytes_(std::min<std::size_t>(memory_bytes, std::size_t{1} << 30)),
      table_(std::make_unique<Table>()) {}

WordMemo::~WordMemo() = default;

std::size_t WordMemo::end_of_word(std::string_view text, std::size_t at) const {
    for (std::size_t i = at + 1; i < text.size(); ++i) {
        const auto a = static_cast<unsigned char>(text[i - 1]), b = static_cast<unsigned char>(text[i]);
        if ((a | b) & 0x80) continue;
        const WordCut cut = cuts_[a * std::size_t{128} + b];
        if (cut == WordCut::here) return i;
        if (cut == WordCut::before_letter && i + 1 < text.size() && is_letter(text[i + 1])) return i;
    }
    return text.size();
}

WordTokens WordMemo::encode(std::string_view text) const {
    WordTokens found;
    std::unique_ptr<Table> missing;
    std::shared_lock lock(mutex_);
    for (std::size_t at = 0, end; at < text.size(); at = end) {
        end = end_of_word(text, at);
        const std::string_view word = text.substr(at, end - at);
        if (word.size() > kMaxWordBytes) {
            found.skipped.push_back({static_cast<std::int64_t>(found.tokens.size()),
                                     static_cast<std::int64_t>(at), static_cast<std::int64_t>(end)});
            continue;
        }
        const std::uint64_t hash = hash_of(word);
        if (const Entry* entry = table_->find(word, hash)) {
            if (found.unknown.empty()) table_->append_tokens(*entry, found.tokens);
            continue;
        }
        if (!missing) missing = std::make_unique<Table>();
        if (!missing->find(word, hash)) {
            missing->add(word, hash, {});
            found.unknown.push_back(word);
        }
    }
    if (!found.unknown.empty()) {
        found.tokens.clear();
        found.skipped.clear();
    }
    return found;
}

void WordMemo::learn(std::span<const std::string_view> words, std::span<const std::int32_t> tokens,
                     std::span<const std::int64_t> ends) {
    std::unique_lock lock(mutex_);
    if (table_->bytes() > memory_bytes_) table_ = std::make_unique<Table>();
    std::size_t begin = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const auto end = static_cast<std::size_t>(ends[i]);
        const std::string_view word = words[i];
        if (!word.empty() && word.size() <= kMaxWordBytes) {
            const std::uint64_t hash = hash_of(word);
            if (!table_->find(word, hash)) table_->add(word, hash, tokens.subspan(begin, end - begin));
        }
        begin = end;
    }
}

std::size_t WordMemo::words() const {
    std::shared_lock lock(mutex_);
    return table_->used();
}

}  // namespace suffixsvc
