// Merges sorted sources of (key, count) into one sequence without duplicates: a tournament tree, so that a
// step costs one comparison per level whatever wins.
#pragma once

#include <cstdint>
#include <vector>

#include "ngram_key.h"

namespace suffixsvc {

// A Source has done(), key(), count(), next(). The sources outlive the merge.
template <unsigned K, typename Source>
class Merge {
  public:
    explicit Merge(std::vector<Source>& sources) : sources_(sources), leaves_(1) {
        while (leaves_ < sources.size()) leaves_ *= 2;
        losers_.assign(leaves_, kNobody);
        winner_ = sources.empty() ? kNobody : play(1);
    }
    bool done() const { return winner_ == kNobody || sources_[winner_].done(); }
    // The smallest key and the sum of its counts; not when done().
    std::uint64_t take(Key<K>& key) {
        key = sources_[winner_].key();
        std::uint64_t count = 0;
        do {
            count += sources_[winner_].count();
            sources_[winner_].next();
            replay();
        } while (!done() && sources_[winner_].key() == key);
        return count;
    }

  private:
    static constexpr std::uint32_t kNobody = 0xffffffffu;

    bool before(std::uint32_t a, std::uint32_t b) const {
        if (a == kNobody || sources_[a].done()) return false;
        if (b == kNobody || sources_[b].done()) return true;
        return sources_[a].key() < sources_[b].key();
    }
    // The winner below a place of the tree; the losers stay in their places.
    std::uint32_t play(std::size_t place) {
        if (place >= leaves_) {
            const std::size_t i = place - leaves_;
            return i < sources_.size() ? static_cast<std::uint32_t>(i) : kNobody;
        }
        const std::uint32_t a = play(2 * place);
        const std::uint32_t b = play(2 * place + 1);
        losers_[place] = before(a, b) ? b : a;
        return before(a, b) ? a : b;
    }
    void replay() {
        std::uint32_t rising = winner_;
        for (std::size_t place = (leaves_ + winner_) / 2; place > 0; place /= 2)
            if (before(losers_[place], rising)) std::swap(losers_[place], rising);
        winner_ = rising;
    }

    std::vector<Source>& sources_;
    std::size_t leaves_;
    std::vector<std::uint32_t> losers_;
    std::uint32_t winner_ = kNobody;
};

}  // namespace suffixsvc
