#include "index.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace suffixsvc {

namespace {
constexpr std::uint32_t kEveryLink = 0xFFFFFFFFu;
constexpr std::int64_t kVisitsPerToken = 7;  // what appending may touch in the mean
constexpr std::int64_t kMostCredit = 1 << 12;
constexpr std::int64_t kMostDebt = 1 << 8;  // past it even the second node has to wait
}  // namespace

Index::Index(std::uint32_t max_context) : max_context_(std::max(1u, max_context)), nodes_(1) { reset(); }

void Index::reset() {
    pool_.clear();
    nodes_.clear();
    std::vector<NodeId>().swap(dead_);
    live_ = edges_ = 0;
    unsettled_ = 0;
    make(0, kManyWriters);
    with_block(at(kRoot))->ends = 0;
}

// ------------------------------------------------------------------------------------------ nodes

NodeId Index::make(std::uint32_t len, std::uint32_t writer) {
    if (len > Node::kMostLen) throw std::length_error("a text of an index is longer than 2^28 - 1 tokens");
    const NodeId id = nodes_.allocate(1, 0);
    *at(id) = Node{len, kNoNode, writer, Edge{-1, kNoNode}};
    ++live_;
    return id;
}

void Index::free_later(NodeId id, NodeId heir) {
    Node* n = at(id);
    if (unsent_of(n) != 0) --unsettled_;
    edges_ -= edges(id).size();
    if (n->has_block()) pool_.free(n->one.to);
    n->head = 0;
    n->link = heir;
    dead_.push_back(id);
    --live_;
}

Block* Index::with_block(Node* n) {
    if (n->has_block()) return block(n);
    const BlockRef ref = pool_.make();
    Block* b = pool_.block(ref);
    b->ends = 1;
    b->unsent = (n->head & Node::kUnsent) != 0;
    if (n->one.to != kNoNode) {
        b->edges()[0] = n->one;
        b->size = 1;
        b->recent = n->one.token;
    }
    n->one = Edge{(n->head & Node::kCounted) != 0, ref};
    n->head = n->len() | Node::kHasBlock;
    return b;
}

// Undoes with_block where the node is like most again.
void Index::make_plain(Node* n) {
    if (!n->has_block()) return;
    const Block* b = block(n);
    if (b->kids != 0 || b->ends != 1 || b->size > 1) return;
    const std::int32_t count = n->one.token;
    if (count < 0 || count > 1 || b->unsent < 0 || b->unsent > 1) return;
    n->head = n->len() | (count != 0 ? Node::kCounted : 0) | (b->unsent != 0 ? Node::kUnsent : 0);
    const BlockRef ref = n->one.to;
    n->one = b->size == 1 ? b->edges()[0] : Edge{-1, kNoNode};
    pool_.free(ref);
}

std::int32_t Index::count_of(const Node* n) const {
    return n->has_block() ? n->one.token : (n->head & Node::kCounted) != 0;
}

std::int32_t Index::unsent_of(const Node* n) const {
    return n->has_block() ? block(n)->unsent : (n->head & Node::kUnsent) != 0;
}

void Index::set_counts(Node* n, std::int32_t count, std::int32_t unsent) {
    if (!n->has_block() && count >= 0 && count <= 1 && unsent >= 0 && unsent <= 1) {
        n->head = n->len() | (count != 0 ? Node::kCounted : 0) | (unsent != 0 ? Node::kUnsent : 0);
        return;
    }
    with_block(n)->unsent = unsent;
    n->one.token = count;
}

// Where the token leads, or kNoNode after adding an edge to `to`. Either way it is the node's recent one.
NodeId Index::find_or_add(NodeId id, Token token, NodeId to) {
    Node* n = at(id);
    if (!n->has_block()) {
        if (n->one.to == kNoNode) {
            n->one = Edge{token, to};
            ++edges_;
            return kNoNode;
        }
        if (n->one.token == token) return n->one.to;
        with_block(n);
    }
    const NodeId target = pool_.find_or_add(n->one.to, token, to);
    block(n)->recent = token;
    edges_ += target == kNoNode;
    return target;
}

bool Index::replace(NodeId id, Token token, NodeId from, NodeId to) {
    Node* n = at(id);
    if (n->has_block()) return pool_.replace(n->one.to, token, from, to);
    if (n->one.token != token || n->one.to != from) return false;
    n->one.to = to;
    return true;
}

bool Index::erase(NodeId id, Token token, NodeId to) {
    Node* n = at(id);
    if (!n->has_block()) {
        if (n->one.token != token || n->one.to != to) return false;
        n->one = Edge{-1, kNoNode};
    } else {
        if (!pool_.erase(n->one.to, token, to)) return false;
        Block* b = block(n);
        if (b->recent == token) b->recent = -1;
        make_plain(n);
    }
    --edges_;
    return true;
}

// ---------------------------------------------------------------------------------------- growing

NodeId Index::split(NodeId from, Token token, NodeId target) {
    Node* t = at(target);
    const NodeId id = make(len(from) + 1, t->writer);
    Node* n = at(id);
    // What reached the target counts here too; what it had not passed on is now ours to pass on.
    const std::int32_t count = count_of(t);
    const std::int32_t unsent = unsent_of(t);
    if (t->has_block()) {
        n->one.to = pool_.copy(t->one.to);
        n->head |= Node::kHasBlock;
    } else {
        n->one = t->one;
        with_block(n);
    }
    Block* b = block(n);
    n->one.token = count;
    b->unsent = unsent;
    b->ends = 0;
    b->kids = 1;
    b->kids_xor = target;
    edges_ += b->size;
    set_counts(t, n->len() >= max_context_ ? 0 : count, 0);  // beyond max_context nothing is counted
    n->link = t->link;
    block(at(n->link))->kids_xor ^= target ^ id;
    t->link = id;
    for (NodeId p = from; p != kNoNode; p = at(p)->link) {
        if (p != from) ++visited_;
        if (!replace(p, token, target, id)) break;
    }
    return id;
}

Index::Grown Index::extend(NodeId last, Token token, std::uint32_t writer) {
    ++visited_;
    NodeId target = next(last, token);
    if (target != kNoNode) {
        if (at(last)->has_block()) block(at(last))->recent = token;
        if (len(target) != len(last) + 1) target = split(last, token, target);
        return {target, false};
    }
    const NodeId id = make(len(last) + 1, writer);
    NodeId p = last;
    for (;;) {
        target = find_or_add(p, token, id);
        if (target != kNoNode) break;
        p = at(p)->link;
        if (p == kNoNode) break;
        ++visited_;
    }
    NodeId link = kRoot;
    if (p != kNoNode) link = len(target) == len(p) + 1 ? target : split(p, token, target);
    at(id)->link = link;
    Block* b = with_block(at(link));
    b->kids += 1;
    b->kids_xor ^= id;
    return {id, true};
}

void Index::mark_writer(NodeId id, std::uint32_t writer) {
    // A node's writers are among its parent's. So where a node already has this writer, or many, all
    // above it are right; each node turns to "many" once.
    for (; id != kRoot; id = at(id)->link) {
        Node* n = at(id);
        if (n->writer == kManyWriters || n->writer == writer) return;
        n->writer = kManyWriters;
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
        Node* n = at(id);
        ++visited_;
        if (id == kRoot) {
            n->one.token += amount;
            return;
        }
        const std::int32_t before = unsent_of(n);
        amount += before;
        const bool stops = --hops == 0;
        const std::int32_t count = count_of(n) + amount - before;
        set_counts(n, count, stops ? amount : 0);
        unsettled_ += (stops && amount != 0) - (before != 0);
        if (stops || amount == 0) return;
        id = n->link;
    }
}

void Index::grow(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                 std::span<const Token> context_tail) {
    const std::uint64_t before = visited_;
    const Grown grown = extend(text.last, token, writer);
    const Node* n = at(grown.id);
    if (!grown.made) with_block(at(grown.id))->ends += 1;
    mark_writer(grown.made ? n->link : grown.id, writer);
    text.last = grown.id;
    if (n->link == kNoNode || len(n->link) < max_context_) {
        // No other node holds the text's last tokens, up to max_context of them.
        text.context = Cursor{grown.id, std::min(n->len(), max_context_)};
        text.epoch = epoch_;
    } else {
        if (text.epoch != epoch_) {
            text.context = find(context_tail);
            text.epoch = epoch_;
        }
        visited_ += advance(text.context, token);
    }
    if (counted) carry(text.context.node, 1, hops());
    credit_ = std::min<std::int64_t>(credit_ + kVisitsPerToken - static_cast<std::int64_t>(visited_ - before),
                                     kMostCredit);
    ++tokens_;
    ++appended_;
}

void Index::append(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                   std::span<const Token> context_tail) {
    grow(text, token, counted, writer, context_tail);
}

void Index::append(TextEnd& text, std::span<const Token> tokens, std::size_t uncounted,
                   std::uint32_t writer) {
    for (std::size_t i = 0; i < tokens.size(); ++i) grow(text, tokens[i], i >= uncounted, writer, {});
}

void Index::add(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer) {
    TextEnd end;
    append(end, text, uncounted, writer);
}

void Index::settle() {
    if (unsettled_ == 0) return;
    // From the longest contexts to the shortest, so that each node is passed on once.
    std::vector<NodeId> order;
    for_each_node([&](NodeId id, const Node&) {
        if (id != kRoot) order.push_back(id);
    });
    std::sort(order.begin(), order.end(), [this](NodeId a, NodeId b) { return len(a) > len(b); });
    for (NodeId id : order) {
        Node* n = at(id);
        const std::int32_t unsent = unsent_of(n);
        if (unsent == 0) continue;
        Node* parent = at(n->link);
        parent->one.token += unsent;  // has a child, so it has a block
        if (n->link != kRoot) block(parent)->unsent += unsent;
        set_counts(n, count_of(n), 0);
    }
    unsettled_ = 0;
}

// --------------------------------------------------------------------------------------- removing

void Index::merge_into_child(NodeId id, NodeId from, Token token) {
    Node* n = at(id);
    const NodeId heir = block(n)->kids_xor;
    Node* child = at(heir);
    for (NodeId p = from; p != kNoNode; p = at(p)->link)
        if (!replace(p, token, id, heir)) break;
    const bool was_unsent = unsent_of(child) != 0;
    if (n->len() >= max_context_) {
        // the child's strings were beyond counting; now it has counted ones
        set_counts(child, n->one.token, unsent_of(n));
    } else {
        // The new parent has received count - unsent of the node that goes.
        set_counts(child, count_of(child), count_of(child) - (n->one.token - unsent_of(n)));
    }
    unsettled_ += (unsent_of(child) != 0) - was_unsent;
    child->link = n->link;
    block(at(n->link))->kids_xor ^= id ^ heir;
    make_plain(child);
    free_later(id, heir);
}

void Index::drop_last(NodeId id, NodeId before, Token token) {
    Node* n = at(id);
    if (n->has_block()) {
        Block* b = block(n);
        b->ends -= 1;
        if (b->ends > 0 || b->kids > 1) {
            make_plain(n);
            return;
        }
        if (b->kids == 1) {
            merge_into_child(id, before, token);
            return;
        }
    }
    const NodeId parent = n->link;
    if (const std::int32_t unsent = unsent_of(n); unsent != 0) carry(parent, unsent, 1);
    NodeId p = before;
    while (p != kNoNode && erase(p, token, id)) p = at(p)->link;
    Block* b = block(at(parent));
    b->kids -= 1;
    b->kids_xor ^= id;
    free_later(id, parent);
    if (parent != kRoot && b->ends == 0 && b->kids == 1)
        merge_into_child(parent, p, token);  // p is where edges begin to lead to the parent
    else
        make_plain(at(parent));
}

std::uint32_t Index::ends_of(const Node* n) const { return n->has_block() ? block(n)->ends : 1; }

bool Index::is_text(std::span<const Token> text, std::vector<NodeId>& path) const {
    path.assign(1, kRoot);
    for (std::size_t i = 0; i < text.size(); ++i) {
        const NodeId id = next(path.back(), text[i]);
        if (id == kNoNode || len(id) != i + 1 || ends_of(at(id)) == 0) return false;
        path.push_back(id);
    }
    // Texts that pass through the last node go on to a node one token longer; some text must not.
    std::uint32_t passing = 0;
    for (const Edge& e : edges(path.back()))
        if (len(e.to) == text.size() + 1) passing += ends_of(at(e.to));
    return text.empty() || ends_of(at(path.back())) > passing;
}

bool Index::remove(std::span<const Token> text, std::size_t uncounted) {
    std::vector<NodeId> path;
    if (!is_text(text, path)) return false;
    std::vector<NodeId> contexts{kRoot};
    contexts.reserve(text.size() + 1);
    Cursor cursor;
    for (Token token : text) {
        advance(cursor, token);
        contexts.push_back(cursor.node);
    }
    for (std::size_t i = text.size(); i > 0; --i) {
        if (i > uncounted) {
            NodeId context = contexts[i];
            while (context != kRoot && at(context)->head == 0) context = at(context)->link;
            carry(context, -1, kEveryLink);
        }
        drop_last(path[i], path[i - 1], text[i - 1]);
        --tokens_;
    }
    for (NodeId id : dead_) nodes_.free(id);
    dead_.clear();
    ++epoch_;
    if (live_ == 1) reset();  // empty again: everything goes back to the system
    return true;
}

// ---------------------------------------------------------------------------------------- reading

std::uint32_t Index::canonical(Cursor& cursor) const {
    std::uint32_t touched = 0;
    while (cursor.node != kRoot && cursor.len <= len(at(cursor.node)->link)) {
        cursor.node = at(cursor.node)->link;
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
        cursor.node = at(cursor.node)->link;
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
