// Merges sorted sources of (key, count) into one sequence without duplicates, with a loser tree: each step
// takes one comparison per level of the tree.
#pragma once

#include <cstdint>
#include <vector>

#include "ngram/ngram_key.h"

namespace suffixsvc {

// A Source has done(), key(), count(), next(). The sources must outlive the merge.
template <unsigned K, typename Source>
class KWayMerge {
  public:
    explicit KWayMerge(std::vector<Source>& sources) : sources_(sources), leaves_(1) {
        while (leaves_ < sources.size()) leaves_ *= 2;
        losers_.assign(leaves_, kNone);
        winner_ = sources.empty() ? kNone : play(1);
    }
    bool done() const { return winner_ == kNone || sources_[winner_].done(); }
    // The smallest key and the sum of its counts; not to be called when done().
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
    static constexpr std::uint32_t kNone = 0xffffffffu;

    bool before(std::uint32_t a, std::uint32_t b) const {
        if (a == kNone || sources_[a].done()) return false;
        if (b == kNone || sources_[b].done()) return true;
        return sources_[a].key() < sources_[b].key();
    }
    // The winner of the subtree at a node; the losers are stored in its nodes.
    std::uint32_t play(std::size_t place) {
        if (place >= leaves_) {
            const std::size_t i = place - leaves_;
            return i < sources_.size() ? static_cast<std::uint32_t>(i) : kNone;
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
    std::uint32_t winner_ = kNone;
};

}  // namespace suffixsvc
