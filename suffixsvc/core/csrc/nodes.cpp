#include "nodes.h"

#include <new>
#include <stdexcept>

namespace suffixsvc {

namespace {

std::uint32_t require_len(std::uint32_t len) {
    if (len > Node::kMostLen) throw std::length_error("a text of an index is longer than 2^28 - 1 tokens");
    return len;
}

}  // namespace

void Nodes::clear() {
    pool_.clear();
    plain_.clear();
    full_.clear();
    num_edges_ = 0;
    live_ = 1;
    const NodeId root = new_full(Node::kTheRoot);
    full(root)->body.writer = kManyWriters;
}

std::uint32_t Nodes::new_full(std::uint32_t head) {
    const std::uint32_t unit = full_.allocate(1, 0);
    if (unit & kPlain) throw std::bad_alloc();
    *full(unit) = FullNode{{head, kNoNode}, {}};
    return unit;
}

NodeId Nodes::make_plain(std::uint32_t len, std::uint32_t writer) {
    require_len(len);
    const std::uint32_t unit = plain_.allocate(1, 0);
    if (unit & kPlain) throw std::bad_alloc();
    const NodeId id = unit | kPlain;
    *plain(id) = PlainNode{{len, kNoNode}, writer, {-1, kNoNode}};
    ++live_;
    return id;
}

NodeId Nodes::make_full(std::uint32_t len) {
    const NodeId id = new_full(require_len(len));
    ++live_;
    return id;
}

void Nodes::bury(NodeId id, NodeId heir) {
    num_edges_ -= edges(id).size();
    if (Body* b = body(id)) pool_.free(b->edges);
    if (id & kPlain && plain(id)->head & Node::kGrown) full_.free(plain(id)->one.to);
    at(id)->head = 0;
    at(id)->link = heir;
    --live_;
}

void Nodes::free(NodeId id) {
    if (id & kPlain)
        plain_.free(id & ~kPlain);
    else
        full_.free(id);
}

Body& Nodes::grow(NodeId id) {
    const std::uint32_t unit = new_full(0);  // a body without a node
    PlainNode* n = plain(id);
    Body& b = full(unit)->body;
    b.count = (n->head & Node::kCounted) != 0;
    b.unsent = (n->head & Node::kUnsent) != 0;
    b.ends = 1;
    b.writer = n->writer;
    if (n->one.to != kNoNode) {
        b.edges.one = n->one;
        b.edges.size = 1;
        b.recent = n->one.token;
    }
    n->head = n->len() | Node::kGrown;
    n->one.to = unit;
    return b;
}

void Nodes::shrink(NodeId id) {
    if (!(id & kPlain)) return;
    PlainNode* n = plain(id);
    if (!(n->head & Node::kGrown)) return;
    const std::uint32_t unit = n->one.to;
    const Body b = full(unit)->body;
    if (b.kids != 0 || b.ends != 1 || b.edges.size_class != 0 || (b.writer & kManyWriters) != 0 ||
        b.count < 0 || b.count > 1 || b.unsent < 0 || b.unsent > 1)
        return;
    n->head = n->len();
    n->writer = b.writer;
    n->one = b.edges.size == 1 ? b.edges.one : Edge{-1, kNoNode};
    set_counts(id, b.count, b.unsent);
    full_.free(unit);
}

void Nodes::set_counts(NodeId id, std::int32_t count, std::int32_t unsent) {
    Body* b = body(id);
    if (b == nullptr) {
        if (count >= 0 && count <= 1 && unsent >= 0 && unsent <= 1) {
            Node* n = at(id);
            n->head = n->len() | (count != 0 ? Node::kCounted : 0) | (unsent != 0 ? Node::kUnsent : 0);
            return;
        }
        b = &grow(id);
    }
    b->count = count;
    b->unsent = unsent;
}

NodeId Nodes::find_or_add(NodeId id, Token token, NodeId to) {
    Body* b = body(id);
    if (b == nullptr) {
        Edge& one = plain(id)->one;
        if (one.to == kNoNode) {
            one = Edge{token, to};
            ++num_edges_;
            return kNoNode;
        }
        if (one.token == token) return one.to;
        b = &grow(id);
    }
    b->recent = token;
    const NodeId target = pool_.find_or_add(b->edges, token, to);
    num_edges_ += target == kNoNode;
    return target;
}

bool Nodes::replace(NodeId id, Token token, NodeId from, NodeId to) {
    if (Body* b = body(id)) return pool_.replace(b->edges, token, from, to);
    Edge& one = plain(id)->one;
    if (one.token != token || one.to != from) return false;
    one.to = to;
    return true;
}

bool Nodes::erase(NodeId id, Token token, NodeId to) {
    if (Body* b = body(id)) {
        if (!pool_.erase(b->edges, token, to)) return false;
        if (b->recent == token) b->recent = -1;
        shrink(id);
    } else {
        Edge& one = plain(id)->one;
        if (one.token != token || one.to != to) return false;
        one = Edge{-1, kNoNode};
    }
    --num_edges_;
    return true;
}

void Nodes::copy_edges(NodeId from, NodeId to) {
    Body* into = body(to);
    if (const Body* b = body(from)) {
        pool_.copy(b->edges, into->edges);
        into->recent = b->recent;
    } else if (const Edge one = plain(from)->one; one.to != kNoNode) {
        into->edges.one = one;
        into->edges.size = 1;
        into->recent = one.token;
    }
    num_edges_ += into->edges.size;
}

const char* Nodes::broken(NodeId id) const {
    const Body* b = body(id);
    return b != nullptr ? pool_.broken(b->edges) : nullptr;
}

}  // namespace suffixsvc
