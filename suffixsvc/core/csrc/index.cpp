#include "index.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace suffixsvc {

namespace {
constexpr std::uint32_t kEveryLink = 0xFFFFFFFFu;
constexpr std::int64_t kVisitsPerToken = 7;  // what appending may touch in the mean
constexpr std::int64_t kMostCredit = 1 << 12;
constexpr std::int64_t kMostDebt = 1 << 8;  // past it even the second node has to wait
}  // namespace

Index::Index(std::uint32_t max_context) : max_context_(std::max(1u, max_context)) {
    make(0);
    at(kRoot)->writer = kManyWriters;
}

// ------------------------------------------------------------------------------------------ nodes

NodeId Index::make(std::uint32_t len) {
    NodeId id;
    if (!free_.empty()) {
        id = free_.back();
        free_.pop_back();
        *at(id) = Node{};
    } else {
        if ((used_ >> kChunkBits) == chunks_.size())
            chunks_.push_back(std::make_unique<Node[]>(std::size_t{1} << kChunkBits));
        id = used_++;
    }
    at(id)->len = len;
    ++live_;
    return id;
}

void Index::free_later(NodeId id, NodeId heir) {
    Node* n = at(id);
    if (n->unsent != 0) --unsettled_;
    pool_.clear(n->edges);
    n->dead = true;
    n->link = heir;
    n->unsent = 0;
    dead_.push_back(id);
    --live_;
}

// ---------------------------------------------------------------------------------------- growing

NodeId Index::split(NodeId from, Token token, NodeId target) {
    const NodeId id = make(at(from)->len + 1);
    Node* t = at(target);
    Node* n = at(id);
    pool_.copy(t->edges, n->edges);
    n->recent = t->recent;
    n->writer = t->writer;
    // What reached the target counts here too; what it had not passed on is now ours to pass on.
    n->count = t->count;
    n->unsent = t->unsent;
    t->unsent = 0;
    if (n->len >= max_context_) t->count = 0;  // the target's own strings are beyond counting now
    n->link = t->link;
    at(n->link)->kids_xor ^= target ^ id;
    n->kids = 1;
    n->kids_xor = target;
    t->link = id;
    for (NodeId p = from; p != kNoNode; p = at(p)->link) {
        if (p != from) ++visited_;
        if (pool_.find(at(p)->edges, token) != target) break;
        pool_.set(at(p)->edges, token, id);
    }
    return id;
}

NodeId Index::extend(NodeId last, Token token, std::uint32_t writer) {
    NodeId p = last;
    ++visited_;
    at(p)->recent = token;
    NodeId target = pool_.find(at(p)->edges, token);
    if (target != kNoNode) {
        if (at(target)->len == at(p)->len + 1) return target;
        return split(p, token, target);
    }
    const NodeId id = make(at(last)->len + 1);
    at(id)->writer = writer;
    while (target == kNoNode) {
        pool_.add(at(p)->edges, token, id);
        p = at(p)->link;
        if (p == kNoNode) break;
        ++visited_;
        at(p)->recent = token;
        target = pool_.find(at(p)->edges, token);
    }
    NodeId link = kRoot;
    if (p != kNoNode) link = at(target)->len == at(p)->len + 1 ? target : split(p, token, target);
    at(id)->link = link;
    at(link)->kids += 1;
    at(link)->kids_xor ^= id;
    return id;
}

void Index::mark_writer(NodeId id, std::uint32_t writer) {
    // A node's writers are among its parent's. So where a node already has this writer, or many, all
    // above it are right; each node turns to "many" once.
    if (at(id)->writer == writer && at(id)->ends == 1) id = at(id)->link;  // perhaps just made
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
        n->count += amount;
        if (id == kRoot) return;
        const std::int32_t before = n->unsent;
        n->unsent += amount;
        if (--hops == 0) {
            unsettled_ += (n->unsent != 0) - (before != 0);
            return;
        }
        amount = n->unsent;
        n->unsent = 0;
        unsettled_ -= before != 0;
        if (amount == 0) return;
        id = n->link;
    }
}

void Index::append(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                   std::span<const Token> context_tail) {
    if (text.epoch != epoch_) {
        text.context = find(context_tail);
        text.epoch = epoch_;
    }
    const std::uint64_t before = visited_;
    text.last = extend(text.last, token, writer);
    at(text.last)->ends += 1;
    mark_writer(text.last, writer);
    visited_ += advance(text.context, token);
    if (counted) carry(text.context.node, 1, hops());
    credit_ = std::min<std::int64_t>(credit_ + kVisitsPerToken - static_cast<std::int64_t>(visited_ - before),
                                     kMostCredit);
    ++tokens_;
    ++appended_;
}

void Index::add(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer) {
    TextEnd end;
    end.epoch = epoch_;
    for (std::size_t i = 0; i < text.size(); ++i) append(end, text[i], i >= uncounted, writer, {});
}

void Index::settle() {
    if (unsettled_ == 0) return;
    // From the longest contexts to the shortest, so that each node is passed on once.
    std::vector<NodeId> order;
    for (NodeId id = 1; id < used_; ++id)
        if (!at(id)->dead && at(id)->len > 0) order.push_back(id);
    std::sort(order.begin(), order.end(), [this](NodeId a, NodeId b) { return at(a)->len > at(b)->len; });
    for (NodeId id : order) {
        Node* n = at(id);
        if (n->unsent == 0) continue;
        Node* parent = at(n->link);
        parent->count += n->unsent;
        if (n->link != kRoot) parent->unsent += n->unsent;
        n->unsent = 0;
    }
    unsettled_ = 0;
}

// --------------------------------------------------------------------------------------- removing

void Index::merge_into_child(NodeId id, NodeId from, Token token) {
    Node* n = at(id);
    const NodeId heir = n->kids_xor;
    Node* child = at(heir);
    for (NodeId p = from; p != kNoNode; p = at(p)->link) {
        if (pool_.find(at(p)->edges, token) != id) break;
        pool_.set(at(p)->edges, token, heir);
    }
    const bool was_unsent = child->unsent != 0;
    if (n->len >= max_context_) {
        child->count = n->count;  // the child's strings were beyond counting; now it has counted ones
        child->unsent = n->unsent;
    } else {
        // The new parent has received count - unsent of the node that goes.
        child->unsent = child->count - (n->count - n->unsent);
    }
    unsettled_ += (child->unsent != 0) - was_unsent;
    child->link = n->link;
    at(n->link)->kids_xor ^= id ^ heir;
    free_later(id, heir);
}

void Index::drop_last(NodeId id, NodeId before, Token token) {
    Node* n = at(id);
    if (n->ends > 0 || n->kids > 1) return;
    if (n->kids == 1) {
        merge_into_child(id, before, token);
        return;
    }
    const NodeId parent = n->link;
    if (n->unsent != 0) carry(parent, n->unsent, 1);
    NodeId p = before;
    for (; p != kNoNode && pool_.find(at(p)->edges, token) == id; p = at(p)->link) {
        pool_.erase(at(p)->edges, token);
        if (at(p)->recent == token) at(p)->recent = -1;
    }
    at(parent)->kids -= 1;
    at(parent)->kids_xor ^= id;
    free_later(id, parent);
    if (parent != kRoot && at(parent)->ends == 0 && at(parent)->kids == 1) {
        merge_into_child(parent, p, token);  // p is where edges begin to lead to the parent
    }
}

bool Index::is_text(std::span<const Token> text, std::vector<NodeId>& path) const {
    path.assign(1, kRoot);
    for (std::size_t i = 0; i < text.size(); ++i) {
        const NodeId id = next(path.back(), text[i]);
        if (id == kNoNode || at(id)->len != i + 1 || at(id)->ends == 0) return false;
        path.push_back(id);
    }
    // Texts that pass through the last node go on to a node one token longer; some text must not.
    std::uint32_t passing = 0;
    for (const Edge& e : edges(path.back()))
        if (at(e.to)->len == text.size() + 1) passing += at(e.to)->ends;
    return text.empty() || at(path.back())->ends > passing;
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
            while (at(context)->dead) context = at(context)->link;
            carry(context, -1, kEveryLink);
        }
        at(path[i])->ends -= 1;
        drop_last(path[i], path[i - 1], text[i - 1]);
        --tokens_;
    }
    free_.insert(free_.end(), dead_.begin(), dead_.end());
    dead_.clear();
    ++epoch_;
    if (live_ == 1) {  // empty again: everything goes back to the system
        const std::uint64_t epoch = epoch_;
        chunks_.clear();
        free_.clear();
        free_.shrink_to_fit();
        pool_ = EdgePool{};
        used_ = 0;
        live_ = 0;
        unsettled_ = 0;
        make(0);
        at(kRoot)->writer = kManyWriters;
        epoch_ = epoch;
    }
    return true;
}

// ---------------------------------------------------------------------------------------- reading

std::uint32_t Index::canonical(Cursor& cursor) const {
    std::uint32_t touched = 0;
    while (cursor.node != kRoot && cursor.len <= at(at(cursor.node)->link)->len) {
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
        cursor.len = at(cursor.node)->len;
        ++touched;
    }
}

Cursor Index::find(std::span<const Token> context) const {
    Cursor cursor;
    if (context.size() > max_context_) context = context.last(max_context_);
    for (Token t : context) advance(cursor, t);
    return cursor;
}

std::uint64_t Index::count(std::span<const Token> tokens) const {
    NodeId id = kRoot;
    for (Token t : tokens) {
        id = next(id, t);
        if (id == kNoNode) return 0;
    }
    return static_cast<std::uint64_t>(std::max(0, at(id)->count));
}

void Index::ngrams(std::uint32_t n, std::vector<Token>& tokens, std::vector<std::uint64_t>& counts) const {
    struct Frame {
        NodeId id;
        std::uint32_t edge;
    };
    if (n == 0) return;
    std::vector<Frame> stack{{kRoot, 0}};
    std::vector<Token> path;
    while (!stack.empty()) {
        Frame& top = stack.back();
        const auto out = edges(top.id);
        if (stack.size() == n + 1 || top.edge == out.size()) {
            if (stack.size() == n + 1 && at(top.id)->count > 0) {
                tokens.insert(tokens.end(), path.begin(), path.end());
                counts.push_back(static_cast<std::uint64_t>(at(top.id)->count));
            }
            stack.pop_back();
            if (!path.empty()) path.pop_back();
            continue;
        }
        const Edge e = out[top.edge++];
        stack.push_back({e.to, 0});
        path.push_back(e.token);
    }
}

IndexStats Index::stats() const {
    IndexStats s;
    s.nodes = live_;
    for (NodeId id = 0; id < used_; ++id)
        if (!at(id)->dead) s.edges += at(id)->edges.size;
    s.tokens = tokens_;
    s.bytes =
        chunks_.size() * (sizeof(Node) << kChunkBits) + pool_.bytes() + free_.capacity() * sizeof(NodeId);
    s.appended = appended_;
    s.visited = visited_;
    return s;
}

std::string Index::check() const {
    auto at_node = [](const char* what, NodeId id) {
        return std::string(what) + " (node " + std::to_string(id) + ")";
    };
    std::vector<std::uint32_t> kids(used_, 0), kids_xor(used_, 0);
    std::vector<std::int64_t> received(used_, 0);
    std::uint64_t live = 0, ends = 0;
    std::int64_t unsettled = 0;
    for (NodeId id = 0; id < used_; ++id) {
        const Node* n = at(id);
        if (n->dead) continue;
        ++live;
        ends += n->ends;
        unsettled += n->unsent != 0;
        if (const char* what = pool_.broken(n->edges)) return at_node(what, id);
        if (id == kRoot) {
            if (n->len != 0 || n->link != kNoNode) return "the root has a length or a link";
        } else {
            if (n->link >= used_ || at(n->link)->dead) return at_node("a link leads to no node", id);
            if (at(n->link)->len >= n->len) return at_node("a link does not lead to a shorter string", id);
            if (n->ends == 0 && n->kids < 2)
                return at_node("a node has no text ending in it and fewer than two children", id);
            kids[n->link] += 1;
            kids_xor[n->link] ^= id;
            received[n->link] += n->count - n->unsent;
            if (n->count < 0) return at_node("a count is negative", id);
            if (at(n->link)->len >= max_context_ && (n->count != 0 || n->unsent != 0))
                return at_node("a context beyond max_context is counted", id);
            const std::uint32_t up = at(n->link)->writer;
            if (up != kManyWriters && up != n->writer)
                return at_node("a writer is not among its parent's", id);
        }
        for (const Edge& e : edges(id)) {
            if (e.to >= used_ || at(e.to)->dead) return at_node("an edge leads to no node", id);
            // The target holds this node's longest string made longer by the token.
            if (at(e.to)->len < n->len + 1) return at_node("an edge leads to a shorter string", id);
            if (at(at(e.to)->link)->len > n->len)
                return at_node("an edge leads to a node of longer strings only", id);
            // Every shorter context of this node knows the token too, and agrees or leads higher up.
            if (id != kRoot) {
                const NodeId up = next(n->link, e.token);
                if (up == kNoNode)
                    return at_node("a shorter context does not know a token that a longer one knows", id);
                NodeId t = e.to;
                while (t != up && t != kRoot) t = at(t)->link;
                if (t != up)
                    return at_node("a shorter context's edge does not lead up from a longer one's", id);
            }
        }
    }
    for (NodeId id = 0; id < used_; ++id) {
        const Node* n = at(id);
        if (n->dead) continue;
        if (kids[id] != n->kids || kids_xor[id] != n->kids_xor) return at_node("children are miscounted", id);
        if (n->len < max_context_ && received[id] > n->count)
            return at_node("a node received more than it counts", id);
    }
    if (live != live_) return "live nodes are miscounted";
    if (ends != tokens_) return "text positions are miscounted";
    if (unsettled != unsettled_) return "unsettled nodes are miscounted";
    if (live + free_.size() != used_) return "free nodes are miscounted";
    return {};
}

}  // namespace suffixsvc
