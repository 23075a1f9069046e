#include "index.h"

#include <algorithm>
#include <array>
#include <bit>

namespace suffixsvc {

namespace {
constexpr std::uint32_t kEveryLink = 0xFFFFFFFFu;
constexpr std::int64_t kVisitsPerToken = 6;  // what appending may touch in the mean
constexpr std::size_t kFetched = 256;        // positions that removing fetches at a time
constexpr std::size_t kTurn = 128;           // tokens, some 40 us
constexpr std::int64_t kMostCredit = 1 << 12;
constexpr std::int64_t kMostDebt = 1 << 8;  // past it even the second node has to wait
}  // namespace

Index::Index(std::uint32_t max_context, bool readers)
    : max_context_(std::max(1u, max_context)), nodes_(readers) {}

// ---------------------------------------------------------------------------------------- growing

// A node has the strings of its longest one's ends that are longer than its link's, `above`. So the edges
// that lead to it come from the contexts of at least that length, and no look-up is needed to find where
// they end.
std::uint64_t Index::redirect(NodeId p, Token token, NodeId from, NodeId to, std::uint32_t above) {
    std::uint64_t visited = 0;
    for (; p != kNoNode && len(p) >= above; p = link(p), ++visited) nodes_.replace(p, token, from, to);
    return visited;
}

NodeId Index::split(NodeId from, Token token, NodeId target) {
    const NodeId id = nodes_.make_full(len(from) + 1);
    nodes_.copy_edges(target, id);
    const std::int32_t count = nodes_.count(target);
    Body& b = *nodes_.body(id);
    b.writer = nodes_.writer(target);
    b.kids = 1;
    b.kids_xor = target;
    // What reached the target counts here too; what it had not passed on is now ours to pass on.
    b.count = count;
    b.unsent = nodes_.unsent(target);
    nodes_.set_counts(target, len(id) >= max_context_ ? 0 : count, 0);  // beyond max_context: not counted
    const NodeId up = link(target);
    nodes_.at(id)->link = up;  // complete
    nodes_.body(up)->kids_xor ^= target ^ id;
    nodes_.at(target)->link = id;
    visited_ += redirect(from, token, target, id, len(up)) - 1;  // `from` was visited before
    return id;
}

Index::Grown Index::extend(NodeId last, Token token, std::uint32_t writer) {
    ++visited_;
    const std::uint32_t last_len = len(last);
    NodeId target = next(last, token);
    if (target != kNoNode) {
        if (Body* b = nodes_.body(last)) b->edges.recent = token;
        if (len(target) != last_len + 1) target = split(last, token, target);
        return {target, false};
    }
    const NodeId id = nodes_.make_plain(last_len + 1, writer);
    NodeId p = last;
    for (;;) {
        const NodeId up = link(p);
        if (up != kNoNode) nodes_.prefetch(up);
        target = nodes_.find_or_add(p, token, id);
        if (target != kNoNode) break;
        p = up;
        if (p == kNoNode) break;
        ++visited_;
    }
    NodeId up = kRoot;
    if (p != kNoNode) up = len(target) == len(p) + 1 ? target : split(p, token, target);
    nodes_.at(id)->link = up;  // from now on readers follow the edges that lead here
    Body& b = nodes_.grown(up);
    b.kids += 1;
    b.kids_xor ^= id;
    return {id, true};
}

void Index::mark_writer(NodeId id, std::uint32_t writer) {
    // A node's writers are among its parent's. So where a node already has this writer, or many, all
    // above it are right; each node turns to "many" once. The newest of many is kept in the longest context
    // only: that is where drafts are taken from.
    for (; id != kRoot; id = link(id)) {
        const std::uint32_t known = nodes_.writer(id);
        if (known == writer) return;
        nodes_.grown(id).writer = writer | kManyWriters;
        if (known & kManyWriters) return;
        ++visited_;
    }
}

std::uint32_t Index::hops() {
    // Entry k has probability 2^-(k+1). The hash keeps the long ones from falling into step with a
    // periodic text.
    static constexpr std::uint32_t kHops[] = {2, 2, 2, 3, 3, 5, 8, 12, 18, 27, 41, 62};
    std::uint64_t x = ++ticks_ * 0x9E3779B97F4A7C15u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    const auto k = static_cast<std::uint32_t>(std::countr_zero(x));
    std::uint32_t drawn = k < std::size(kHops) ? kHops[k] : kEveryLink;
    if (drawn == 2 && credit_ < -kMostDebt) drawn = 1;
    return std::max(drawn, static_cast<std::uint32_t>(std::clamp<std::int64_t>(credit_, 0, max_context_)));
}

void Index::carry(NodeId id, std::int32_t amount, std::uint32_t hops) {
    for (;;) {
        ++visited_;
        if (id == kRoot) {
            nodes_.body(id)->count += amount;
            return;
        }
        const std::int32_t before = nodes_.unsent(id);
        const std::int32_t sent = amount + before;
        const bool stops = --hops == 0;
        nodes_.set_counts(id, nodes_.count(id) + amount, stops ? sent : 0);
        unsettled_ += (stops && sent != 0) - (before != 0);
        if (stops || sent == 0) return;
        amount = sent;
        id = link(id);
    }
}

void Index::pay(std::uint64_t visited_before) {
    const auto touched = static_cast<std::int64_t>(visited_ - visited_before);
    credit_ = std::min<std::int64_t>(credit_ + kVisitsPerToken - touched, kMostCredit);
}

void Index::append(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                   std::span<const Token> context_tail) {
    const std::uint64_t before = visited_;
    const Grown grown = extend(text.last, token, writer);
    if (!grown.made) nodes_.grown(grown.id).ends += 1;
    const NodeId up = link(grown.id);
    mark_writer(grown.made ? up : grown.id, writer);
    text.last = grown.id;
    if (len(up) < max_context_) {
        // The node of the whole text is that of its last max_context tokens, too.
        text.context = Cursor{grown.id, std::min(len(grown.id), max_context_)};
        text.epoch = epoch();
    } else {
        if (text.epoch != epoch()) {
            text.context = find(context_tail);
            text.epoch = epoch();
        }
        visited_ += advance(text.context, token);
    }
    if (counted) carry(text.context.node, 1, hops());
    pay(before);
    ++tokens_;
    ++appended_;
    if (nodes_.due()) nodes_.collect();
}

// What the next tokens will need, fetched while the ones before them are inserted: in a large index nearly
// every look-up is a cache miss. Each step is about as far ahead as a miss takes. A token's own node is
// where its insertion ends if its context is new; where most contexts are known this would be in vain.
class Index::Ahead {
  public:
    Ahead(const Nodes& nodes, std::span<const Token> tokens) : nodes_(nodes), tokens_(tokens) {
        found_.fill(kNoNode);
    }
    // Before token i is inserted; `known` is the length of the longest known context before it.
    void operator()(std::size_t i, std::uint32_t known) {
        new_ = new_ - new_ / 8 + (known <= 1 ? 32 : 0);
        if (new_ < 128 || i + kSlot >= tokens_.size()) return;
        nodes_.prefetch_slot(kRoot, tokens_[i + kSlot]);
        nodes_.prefetch_edge(kRoot, tokens_[i + kEdge]);
        const NodeId id = nodes_.next(kRoot, tokens_[i + kNode]);
        found_[(i + kNode) % found_.size()] = id;
        if (id != kNoNode) nodes_.prefetch(id);
        if (const NodeId near = found_[(i + kFollowers) % found_.size()]; near != kNoNode)
            nodes_.prefetch_slot(near, tokens_[i + kFollowers + 1]);
    }

  private:
    static constexpr std::size_t kSlot = 12, kEdge = 9, kNode = 6, kFollowers = 3;

    const Nodes& nodes_;
    std::span<const Token> tokens_;
    std::array<NodeId, 8> found_;
    std::uint32_t new_ = 0;  // decaying, at most 256: tokens whose context was new
};

void Index::append_part(TextEnd& text, std::span<const Token> tokens, std::size_t first, std::size_t last,
                        std::size_t uncounted, std::uint32_t writer) {
    Ahead ahead(nodes_, tokens.first(last));
    for (std::size_t i = first; i < last; ++i) {
        ahead(i, text.last == kRoot ? 0 : len(link(text.last)));
        append(text, tokens[i], i >= uncounted, writer, tokens.first(i));
    }
}

void Index::append(TextEnd& text, std::span<const Token> tokens, std::size_t uncounted,
                   std::uint32_t writer) {
    append_part(text, tokens, 0, tokens.size(), uncounted, writer);
}

void Index::add(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer) {
    TextEnd end;
    append(end, text, uncounted, writer);
}

void Index::add_in_turns(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer) {
    TextEnd end;
    for (std::size_t first = 0; first < text.size(); first += kTurn) {
        const std::scoped_lock turn(mutex);
        append_part(end, text, first, std::min(text.size(), first + kTurn), uncounted, writer);
    }
}

void Index::settle() {
    if (unsettled_ == 0) return;
    // From the longest contexts to the shortest, so that each node is passed on once.
    std::vector<NodeId> order;
    nodes_.for_each([&](NodeId id) {
        if (id != kRoot) order.push_back(id);
    });
    std::sort(order.begin(), order.end(), [this](NodeId a, NodeId b) { return len(a) > len(b); });
    for (NodeId id : order) {
        const std::int32_t unsent = nodes_.unsent(id);
        if (unsent == 0) continue;
        Body* parent = nodes_.body(link(id));  // it has a child, so it has a body
        parent->count += unsent;
        if (link(id) != kRoot) parent->unsent += unsent;
        nodes_.set_counts(id, nodes_.count(id), 0);
    }
    unsettled_ = 0;
}

// --------------------------------------------------------------------------------------- removing

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
    nodes_.shrink(heir);
    bury(id);
}

void Index::drop_last(NodeId id, NodeId before, Token token) {
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

bool Index::is_text(std::span<const Token> text, std::vector<NodeId>& path) const {
    path.assign(1, kRoot);
    for (std::size_t i = 0; i < text.size(); ++i) {
        const NodeId id = next(path.back(), text[i]);
        if (id == kNoNode || len(id) != i + 1 || nodes_.ends(id) == 0) return false;
        path.push_back(id);
        nodes_.prefetch(link(id));
    }
    // Texts that pass through the last node go on to a node one token longer; some text must not.
    std::uint32_t passing = 0;
    for (const Edge& e : edges(path.back()))
        if (len(e.to) == text.size() + 1) passing += nodes_.ends(e.to);
    return text.empty() || nodes_.ends(path.back()) > passing;
}

// The nodes of positions first .. last and where they keep the edges that will be erased are cache misses,
// which do not depend on each other from one position to the next: they are fetched abreast.
void Index::fetch(std::span<const NodeId> path, std::span<const Token> text, std::size_t first,
                  std::size_t last) const {
    constexpr std::size_t kLinks = 3;  // most edges of a last token begin no further up
    std::array<NodeId, kFetched> at;
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

bool Index::remove(std::span<const Token> text, std::size_t uncounted) {
    std::vector<NodeId> path;
    if (!is_text(text, path)) return false;
    const std::uint64_t visited_by_appending = visited_;
    // Where each position is counted; see append.
    std::vector<NodeId> contexts;
    Cursor cursor;
    for (std::size_t i = 1; i < path.size(); ++i) {
        if (len(link(path[i])) < max_context_)
            cursor = Cursor{path[i], std::min(len(path[i]), max_context_)};
        else
            advance(cursor, text[i - 1]);
        contexts.push_back(cursor.node);
    }
    std::size_t fetched = text.size();
    for (std::size_t i = text.size(); i > 0; --i) {
        if (i == fetched) {
            const std::size_t first = i > kFetched ? i - kFetched : 0;
            fetch(path, text, first, i);
            fetched = first;
        }
        const std::uint64_t before = visited_;
        if (i > uncounted) {
            NodeId context = contexts[i - 1];
            while (nodes_.buried(context)) context = nodes_.heir(context);
            carry(context, -1, hops());
        }
        drop_last(path[i], path[i - 1], text[i - 1]);
        pay(before);
        --tokens_;
    }
    visited_ = visited_by_appending;
    if (nodes_.live() == 1) {
        nodes_.reset_root();
        unsettled_ = 0;
    }
    // Cursors are stale before anything that they lead to may be used again.
    epoch_.store(epoch() + 1, std::memory_order_release);
    nodes_.collect();
    return true;
}

// ---------------------------------------------------------------------------------------- reading

std::uint32_t Index::canonical(Cursor& cursor) const {
    std::uint32_t touched = 0;
    while (cursor.node != kRoot && cursor.len <= len(link(cursor.node))) {
        cursor.node = link(cursor.node);
        ++touched;
    }
    return touched;
}

std::uint32_t Index::advance(Cursor& cursor, Token token) const {
    std::uint32_t touched = 1 + canonical(cursor);
    if (cursor.len == max_context_) {
        --cursor.len;
        touched += canonical(cursor);
    }
    for (;;) {
        const NodeId to = next(cursor.node, token);
        if (to != kNoNode) {
            cursor.node = to;
            ++cursor.len;
            return touched;
        }
        if (cursor.node == kRoot) {
            cursor.len = 0;
            return touched;
        }
        cursor.node = link(cursor.node);
        cursor.len = len(cursor.node);
        ++touched;
    }
}

Cursor Index::find(std::span<const Token> context) const {
    Cursor cursor;
    if (context.size() > max_context_) context = context.last(max_context_);
    for (Token t : context) advance(cursor, t);
    return cursor;
}

}  // namespace suffixsvc
