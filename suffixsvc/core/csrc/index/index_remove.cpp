// Removal of texts: see index/index.h.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_set>

#include "index/index.h"

namespace suffixsvc {

void Index::retire(NodeId id) {
    num_pending_ -= nodes_.pending(id) != 0;
    nodes_.retire(id);
}

void Index::merge_into_child(NodeId id, NodeId from, Token token) {
    const Body& b = *nodes_.body(id);
    const NodeId successor = b.child_xor;
    const NodeId up = link(id);
    visited_ += redirect(from, token, id, successor, len(up));
    const bool was_pending = nodes_.pending(successor) != 0;
    if (len(id) >= max_context_) {
        // The child was beyond max_context; now it represents counted strings, too.
        nodes_.set_counts(successor, b.count, b.pending);
    } else {
        // The new parent has received count - pending of the retired node.
        const std::int32_t count = nodes_.count(successor);
        nodes_.set_counts(successor, count, count - (b.count - b.pending));
    }
    num_pending_ += (nodes_.pending(successor) != 0) - was_pending;
    nodes_.at(successor)->link = up;
    nodes_.body(up)->child_xor ^= id ^ successor;
    for (const NodeId each : {successor, up}) changed(each);
    nodes_.demote(successor);
    retire(id);
}

void Index::drop_last(NodeId id, NodeId before, Token token) {
    changed(id);
    if (Body* b = nodes_.body(id)) {
        b->ends -= 1;
        if (b->ends > 0 || b->child_count > 1) {
            nodes_.demote(id);
            return;
        }
        if (b->child_count == 1) {
            merge_into_child(id, before, token);
            return;
        }
    }
    const NodeId parent = link(id);
    changed(parent);
    if (const std::int32_t pending = nodes_.pending(id); pending != 0) propagate(parent, pending, 1);
    NodeId p = before;
    for (; p != kNoNode && len(p) >= len(parent); p = link(p), ++visited_) nodes_.erase(p, token, id);
    Body& b = *nodes_.body(parent);
    b.child_count -= 1;
    b.child_xor ^= id;
    retire(id);
    if (parent != kRoot && b.ends == 0 && b.child_count == 1)
        merge_into_child(parent, p, token);  // p is the first context whose edge leads to the parent
    else
        nodes_.demote(parent);
}

// Finds the nodes of all prefixes of a text; false if one of them is not the longest string of a node.
// Requires an EpochGuard, not the mutex. If the text is in the index, these stay its nodes until it is
// removed, whatever other threads write.
bool Index::walk(std::span<const Token> text, std::vector<NodeId>& path) const {
    path.assign(1, kRoot);
    path.reserve(text.size() + 1);
    for (std::size_t i = 0; i < text.size(); ++i) {
        const NodeId id = next(path.back(), text[i]);
        if (id == kNoNode || len(id) != i + 1) return false;
        path.push_back(id);
        nodes_.prefetch(link(id));
    }
    return true;
}

// Counts, for a node with many edges, the texts that continue from it to a node one token longer, while other
// threads write.
//
// Edges are visited from the last one on, so that none is missed when an edge is erased and the last one
// moves into its place. An edge that was added, or redirected, matters only when a text is written along it,
// which record_continuation reports: the child is counted from then on, in its state at that moment.
struct Index::ContinuationCount {
    // Requires an EpochGuard. Memory is allocated and freed outside of the mutex.
    ContinuationCount(const Index& of, NodeId id) : index(of), node(id) {
        if (const std::size_t children = of.edges(id).size(); children > kBatchVisits)
            counted.reserve(children + children / 8);
    }

    void add_child(NodeId child) {
        if (counted.insert(child).second) texts += index.ends(child);
    }

    const Index& index;
    const NodeId node;
    std::uint64_t texts = 0;
    std::unordered_set<NodeId> counted;
    bool no_memory = false;
};

std::uint32_t Index::ends(NodeId id) const { return nodes_.retired(id) ? 0 : nodes_.ends(id); }

// A text was extended from a node to one that is a token longer (by 1), or shortened back (by -1). A writer
// must not fail because another thread counts.
void Index::record_continuation(NodeId from, NodeId to, int by) noexcept {
    for (ContinuationCount* each : counting_) {
        if (each->node != from) continue;
        try {
            if (each->counted.contains(to))
                each->texts += static_cast<std::uint64_t>(by);
            else
                each->add_child(to);
        } catch (const std::bad_alloc&) {
            each->no_memory = true;
        }
    }
}

// Number of texts ending in a node that are being removed.
std::uint64_t Index::removals_ending_in(NodeId id) const {
    mutex.add_work(removing_.size());
    const auto there = [id](const Removal* each) { return each->last == id; };
    return static_cast<std::uint64_t>(std::count_if(removing_.begin(), removing_.end(), there));
}

// Whether a text ends in a node, other than those that are being removed. Texts that continue beyond it lead
// to a node one token longer. If there are many edges, these are visited in several batches; the result is
// that of the last batch. Requires an EpochGuard.
bool Index::text_ends_here(ContinuationCount& count, std::unique_lock<Mutex>& lock) {
    constexpr std::size_t kAhead = 8;
    const NodeId last = count.node;
    const std::uint32_t longer = len(last) + 1;
    const std::uint64_t removed = removals_ending_in(last);
    std::size_t left = edges(last).size();  // edges that are left to visit
    if (left <= kBatchVisits) {
        std::uint64_t others = removed;
        for (const Edges out = edges(last); left > 0 && others < ends(last); --left) {
            if (left > kAhead) nodes_.prefetch(out[left - 1 - kAhead].to);
            if (const NodeId to = out[left - 1].to; len(to) == longer) others += ends(to);
            mutex.add_work(1);
        }
        return ends(last) > others;
    }
    if (ends(last) <= removed) return false;
    const auto unregister = [this](ContinuationCount* each) { std::erase(counting_, each); };
    counting_.push_back(&count);
    const std::unique_ptr<ContinuationCount, decltype(unregister)> registered(&count, unregister);
    for (;;) {
        const Edges out = edges(last);
        left = std::min(left, out.size());
        for (std::size_t some = std::min<std::size_t>(left, kBatchVisits); some > 0; --some, --left) {
            if (left > kAhead) nodes_.prefetch(out[left - 1 - kAhead].to);
            if (const NodeId to = out[left - 1].to; len(to) == longer) count.add_child(to);
            mutex.add_work(1);
        }
        if (left == 0) return ends(last) > count.texts + removals_ending_in(last);
        lock.unlock();
        lock.lock();
        if (count.no_memory) throw std::bad_alloc();
        if (ends(last) == 0) return false;
    }
}

// Finds the nodes of a text and registers its removal, so that no other thread removes it.
bool Index::begin_removal(std::span<const Token> text, Removal& removal) {
    const EpochGuard guard;
    const std::uint64_t before = epoch();
    if (!walk(text, removal.path)) return false;
    {
        ContinuationCount count(*this, removal.path.back());
        std::unique_lock lock(mutex);
        if (!text_ends_here(count, lock)) return false;
        removal.last = removal.path.back();
        removing_.push_back(&removal);
        if (epoch() == before) return true;
    }
    // Something was removed meanwhile, perhaps an equal text before this one was added: some of the nodes may
    // be retired. Those that are found now stay.
    return walk(text, removal.path);
}

// Prefetches the nodes of positions first .. last and the edges that will be erased. The cache misses of
// different positions are independent, so that they overlap.
void Index::prefetch_path(std::span<const NodeId> path, std::span<const Token> text, std::size_t first,
                          std::size_t last) const {
    constexpr std::size_t kLinks = 3;  // most edges of a last token start no further up
    std::array<NodeId, kBatchTokens> at;
    for (std::size_t i = first; i < last; ++i) {
        at[i - first] = path[i];
        if (path[i] != kRoot) nodes_.prefetch(link(path[i]));
    }
    for (std::size_t k = 0; k < kLinks; ++k)
        for (std::size_t i = first; i < last; ++i) {
            NodeId& id = at[i - first];
            if (id == kNoNode) continue;
            nodes_.prefetch_edge(id, text[i]);
            id = link(id);
            if (id == kNoNode) continue;
            nodes_.prefetch_bucket(id, text[i]);
            if (id != kRoot) nodes_.prefetch(link(id));
        }
}

Index::Removal::~Removal() {
    const std::scoped_lock lock(index.mutex);
    std::erase(index.removing_, this);
}

bool Index::remove(std::span<const Token> text, std::size_t uncounted) {
    if (text.empty()) return true;
    const std::vector<Piece> parts = pieces(text.size(), uncounted);
    std::deque<Removal> removals;  // all are found before the first is removed
    for (const Piece& piece : parts)
        if (!begin_removal(text.subspan(piece.first, piece.last - piece.first), removals.emplace_back(*this)))
            return false;
    for (std::size_t p = parts.size(); p-- > 0;) {
        const auto part = text.subspan(parts[p].first, parts[p].last - parts[p].first);
        Removal& removal = removals[p];
        for (std::size_t left = part.size(); left > 0;) {
            const std::scoped_lock lock(mutex);
            left = remove_part(part, parts[p].uncounted, removal.path,
                               left > kBatchTokens ? left - kBatchTokens : 0, left);
            removal.last = removal.path[left];
            if (left == 0) repeated_ -= parts[p].repeated;
        }
    }
    return true;
}

// Removes the tokens first .. last, which end the text by now. Returns the new length of the text, which is
// greater than `first` if the visits are used up.
std::size_t Index::remove_part(std::span<const Token> text, std::size_t uncounted,
                               std::span<const NodeId> path, std::size_t first, std::size_t last) {
    const std::uint64_t visited_by_appending = visited_;
    // The context in which each position is counted; see append.
    std::array<NodeId, kBatchTokens> contexts;
    Cursor cursor;
    for (std::size_t i = std::max(first, uncounted) + 1; i <= last; ++i) {
        if (len(link(path[i])) < max_context_)
            cursor = Cursor{path[i], std::min(len(path[i]), max_context_)};
        else if (cursor.len == 0)
            cursor = find(text.first(i));
        else
            advance(cursor, text[i - 1]);
        contexts[i - 1 - first] = cursor.node;
    }
    prefetch_path(path, text, first, last);
    std::size_t left = last;
    for (; left > first && visited_ - visited_by_appending < kBatchVisits; --left) {
        const std::uint64_t before = visited_;
        if (left > uncounted) {
            NodeId context = contexts[left - 1 - first];
            while (nodes_.retired(context)) context = nodes_.successor(context);
            propagate(context, -1, random_hop_limit());
        }
        drop_last(path[left], path[left - 1], text[left - 1]);
        if (!counting_.empty()) [[unlikely]]
            record_continuation(path[left - 1], path[left], -1);
        --tokens_;
        charge_visits(before);
    }
    visited_ = visited_by_appending;
    if (nodes_.live() == 1) {
        nodes_.reset_root();
        changed(kRoot);
        num_pending_ = 0;
    }
    // Cursors must be invalid before the nodes that they refer to may be reused.
    epoch_.store(epoch() + 1, std::memory_order_release);
    nodes_.collect();
    return left;
}

}  // namespace suffixsvc
