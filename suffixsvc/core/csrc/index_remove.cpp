// Taking texts away again: see index.h.
#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <new>
#include <unordered_set>

#include "index.h"

namespace suffixsvc {

void Index::bury(NodeId id) {
    unsettled_ -= nodes_.unsent(id) != 0;
    nodes_.bury(id);
}

void Index::merge_into_child(NodeId id, NodeId from, Token token) {
    const Body& b = *nodes_.body(id);
    const NodeId heir = b.kids_xor;
    const NodeId up = link(id);
    visited_ += redirect(from, token, id, heir, len(up));
    const bool was_unsent = nodes_.unsent(heir) != 0;
    if (len(id) >= max_context_) {
        // The child's strings were beyond counting; now it has counted ones.
        nodes_.set_counts(heir, b.count, b.unsent);
    } else {
        // The new parent has received count - unsent of the node that goes.
        const std::int32_t count = nodes_.count(heir);
        nodes_.set_counts(heir, count, count - (b.count - b.unsent));
    }
    unsettled_ += (nodes_.unsent(heir) != 0) - was_unsent;
    nodes_.at(heir)->link = up;
    nodes_.body(up)->kids_xor ^= id ^ heir;
    for (const NodeId each : {heir, up}) changed(each);
    nodes_.shrink(heir);
    bury(id);
}

void Index::drop_last(NodeId id, NodeId before, Token token) {
    changed(id);
    if (Body* b = nodes_.body(id)) {
        b->ends -= 1;
        if (b->ends > 0 || b->kids > 1) {
            nodes_.shrink(id);
            return;
        }
        if (b->kids == 1) {
            merge_into_child(id, before, token);
            return;
        }
    }
    const NodeId parent = link(id);
    changed(parent);
    if (const std::int32_t unsent = nodes_.unsent(id); unsent != 0) carry(parent, unsent, 1);
    NodeId p = before;
    for (; p != kNoNode && len(p) >= len(parent); p = link(p), ++visited_) nodes_.erase(p, token, id);
    Body& b = *nodes_.body(parent);
    b.kids -= 1;
    b.kids_xor ^= id;
    bury(id);
    if (parent != kRoot && b.ends == 0 && b.kids == 1)
        merge_into_child(parent, p, token);  // p is where edges begin to lead to the parent
    else
        nodes_.shrink(parent);
}

// The nodes of all beginnings of a text; false where one of them is no node's longest string. Without the
// mutex, while a Reading is held. Where the text is in the index they stay its nodes, whatever others write,
// until it is removed.
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

// Of a node that many tokens followed, how many texts go on from it to a node one token longer: counted while
// others write.
//
// Edges are looked at from the last one on. So where an edge is erased, and the last one moves into its
// place, none is left out. One that was added, or that leads elsewhere by now, matters only when a text goes
// along it, and note_continuation records that: the child that it comes to counts from then on, as it is at
// that moment.
struct Index::ContinuationCount {
    // A Reading is held. Memory is taken, and given back, outside of the mutex.
    ContinuationCount(const Index& of, NodeId id) : index(of), node(id) {
        if (const std::size_t children = of.edges(id).size(); children > kTurnVisits)
            counted.reserve(children + children / 8);
    }

    void look_at(NodeId child) {
        if (counted.insert(child).second) texts += index.ends(child);
    }

    const Index& index;
    const NodeId node;
    std::uint64_t texts = 0;
    std::unordered_set<NodeId> counted;
    bool no_memory = false;
};

std::uint32_t Index::ends(NodeId id) const { return nodes_.buried(id) ? 0 : nodes_.ends(id); }

// A text went on from a node to one that is a token longer (by 1), or back (by -1). Who writes is not to fail
// because another one counts.
void Index::note_continuation(NodeId from, NodeId to, int by) noexcept {
    for (ContinuationCount* each : counting_) {
        if (each->node != from) continue;
        try {
            if (each->counted.contains(to))
                each->texts += static_cast<std::uint64_t>(by);
            else
                each->look_at(to);
        } catch (const std::bad_alloc&) {
            each->no_memory = true;
        }
    }
}

// How many texts that end in a node are being removed.
std::uint64_t Index::removed_from(NodeId id) const {
    mutex.did(removing_.size());
    const auto there = [id](const Removal* each) { return each->last == id; };
    return static_cast<std::uint64_t>(std::count_if(removing_.begin(), removing_.end(), there));
}

// Whether a text ends in a node, other than those that are being removed. Texts that pass through it go on to
// a node one token longer. Where many tokens followed, these are looked at in several turns; what is returned
// is so in the last one. A Reading is held.
bool Index::ends_here(ContinuationCount& count, std::unique_lock<Mutex>& turn) {
    constexpr std::size_t kAhead = 8;
    const NodeId last = count.node;
    const std::uint32_t longer = len(last) + 1;
    const std::uint64_t removed = removed_from(last);
    std::size_t left = edges(last).size();  // of the edges
    if (left <= kTurnVisits) {
        std::uint64_t others = removed;
        for (const Edges out = edges(last); left > 0 && others < ends(last); --left) {
            if (left > kAhead) nodes_.prefetch(out[left - 1 - kAhead].to);
            if (const NodeId to = out[left - 1].to; len(to) == longer) others += ends(to);
            mutex.did(1);
        }
        return ends(last) > others;
    }
    if (ends(last) <= removed) return false;
    struct CountRegistration {
        explicit CountRegistration(ContinuationCount& by, std::vector<ContinuationCount*>& all)
            : counting(by), of(all) {
            of.push_back(&counting);
        }
        CountRegistration(const CountRegistration&) = delete;
        CountRegistration& operator=(const CountRegistration&) = delete;
        ~CountRegistration() { std::erase(of, &counting); }

        ContinuationCount& counting;
        std::vector<ContinuationCount*>& of;
    };
    const CountRegistration registration(count, counting_);
    for (;;) {
        const Edges out = edges(last);
        left = std::min(left, out.size());
        for (std::size_t some = std::min<std::size_t>(left, kTurnVisits); some > 0; --some, --left) {
            if (left > kAhead) nodes_.prefetch(out[left - 1 - kAhead].to);
            if (const NodeId to = out[left - 1].to; len(to) == longer) count.look_at(to);
            mutex.did(1);
        }
        if (left == 0) return ends(last) > count.texts + removed_from(last);
        turn.unlock();
        turn.lock();
        if (count.no_memory) throw std::bad_alloc();
        if (ends(last) == 0) return false;
    }
}

// Finds the nodes of a text and makes sure that no other thread removes it.
bool Index::claim(std::span<const Token> text, Removal& removal) {
    const Reading reading;
    const std::uint64_t before = epoch();
    if (!walk(text, removal.path)) return false;
    {
        ContinuationCount count(*this, removal.path.back());
        std::unique_lock turn(mutex);
        if (!ends_here(count, turn)) return false;
        removal.last = removal.path.back();
        removing_.push_back(&removal);
        if (epoch() == before) return true;
    }
    // Something was removed meanwhile, perhaps an equal text before this one was added: some of the nodes may
    // be gone. Those that are found now stay.
    return walk(text, removal.path);
}

// The nodes of positions first .. last and where they keep the edges that will be erased are cache misses,
// which do not depend on each other from one position to the next: they are fetched abreast.
void Index::fetch(std::span<const NodeId> path, std::span<const Token> text, std::size_t first,
                  std::size_t last) const {
    constexpr std::size_t kLinks = 3;  // most edges of a last token begin no further up
    std::array<NodeId, kTurn> at;
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
            nodes_.prefetch_slot(id, text[i]);
            if (id != kRoot) nodes_.prefetch(link(id));
        }
}

Index::Removal::~Removal() {
    const std::scoped_lock turn(index.mutex);
    std::erase(index.removing_, this);
}

bool Index::remove(std::span<const Token> text, std::size_t uncounted) {
    if (text.empty()) return true;
    const std::vector<Piece> parts = pieces(text.size(), uncounted);
    std::deque<Removal> removals;  // all are there before one of them goes
    for (const Piece& piece : parts)
        if (!claim(text.subspan(piece.first, piece.last - piece.first), removals.emplace_back(*this)))
            return false;
    for (std::size_t p = parts.size(); p-- > 0;) {
        const auto part = text.subspan(parts[p].first, parts[p].last - parts[p].first);
        Removal& removal = removals[p];
        for (std::size_t left = part.size(); left > 0;) {
            const std::scoped_lock turn(mutex);
            left = remove_part(part, parts[p].uncounted, removal.path, left > kTurn ? left - kTurn : 0, left);
            removal.last = removal.path[left];
            if (left == 0) repeated_ -= parts[p].repeated;
        }
    }
    return true;
}

// Takes the tokens first .. last, the text's last ones by now, away again. Returns how far it came: the turn
// may be over before `first`.
std::size_t Index::remove_part(std::span<const Token> text, std::size_t uncounted,
                               std::span<const NodeId> path, std::size_t first, std::size_t last) {
    const std::uint64_t visited_by_appending = visited_;
    // Where each position is counted; see append.
    std::array<NodeId, kTurn> contexts;
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
    fetch(path, text, first, last);
    std::size_t left = last;
    for (; left > first && visited_ - visited_by_appending < kTurnVisits; --left) {
        const std::uint64_t before = visited_;
        if (left > uncounted) {
            NodeId context = contexts[left - 1 - first];
            while (nodes_.buried(context)) context = nodes_.heir(context);
            carry(context, -1, hops());
        }
        drop_last(path[left], path[left - 1], text[left - 1]);
        if (!counting_.empty()) [[unlikely]]
            note_continuation(path[left - 1], path[left], -1);
        --tokens_;
        pay(before);
    }
    visited_ = visited_by_appending;
    if (nodes_.live() == 1) {
        nodes_.reset_root();
        changed(kRoot);
        unsettled_ = 0;
    }
    // Cursors are stale before anything that they lead to may be used again.
    epoch_.store(epoch() + 1, std::memory_order_release);
    nodes_.collect();
    return left;
}

}  // namespace suffixsvc
