#include "index/nodes.h"

#include <new>
#include <stdexcept>

namespace suffixsvc {

namespace {

constexpr std::size_t kCollectLimit = 512;  // objects freed per call, about 100 us

std::uint32_t require_len(std::uint32_t len) {
    if (len > Node::kMaxLen) throw std::length_error("a text of an index must have at most 2^28 - 1 tokens");
    return len;
}

}  // namespace

Nodes::Nodes(bool readers) : plain_(1), full_(1), pool_(retire_list_, readers), readers_(readers) {
    live_ = 1;
    const NodeId root = new_full(Node::kTheRoot);
    full(root)->body.writer = kManyWriters;
}

std::uint32_t Nodes::new_full(std::uint32_t head) {
    const std::uint32_t unit = full_.allocate(1, 0);
    if (unit >= kBody) throw std::bad_alloc();
    *full(unit) = FullNode{{head, kNoNode}, {}};
    return unit;
}

NodeId Nodes::make_plain(std::uint32_t len, std::uint32_t writer) {
    require_len(len);
    const std::uint32_t unit = plain_.allocate(1, 0);
    if (unit >= kPlain - 1) throw std::bad_alloc();
    const NodeId id = unit | kPlain;
    *plain(id) = PlainNode{{len, kNoNode}, writer, -1, kNoNode};
    ++live_;
    return id;
}

NodeId Nodes::make_full(std::uint32_t len) {
    const NodeId id = new_full(require_len(len));
    ++live_;
    return id;
}

void Nodes::retire(NodeId id) {
    num_edges_ -= edges(id).size();
    at(id)->head = at(id)->head | Node::kRetired;
    --live_;
    retire_list_.put({Retired::node, 0, id});
}

void Nodes::free(NodeId id) {
    if (const Body* b = body(id)) pool_.free(b->edges);
    at(id)->head = 0;
    if (!(id & kPlain)) {
        full_.free(id);
        return;
    }
    if (const NodeId to = plain(id)->to; is_body_ref(to)) full_.free(to & ~kBody);
    plain_.free(id & ~kPlain);
}

bool Nodes::collect() {
    const bool more = retire_list_.collect(
        [this](const Retired& r) {
            switch (r.kind) {
                case Retired::block:
                    return pool_.release_now(r.ref, r.size_class);
                case Retired::body:
                    return full_.free(r.ref);
                case Retired::node:
                    return free(r.ref);
            }
        },
        readers_, kCollectLimit);
    if (live_ > 1) {
        trimmed_ = false;
    } else if (!trimmed_ && retire_list_.empty()) {  // empty again: all memory is returned to the system
        plain_.trim();
        full_.trim();
        pool_.trim();
        retire_list_.shrink_to_fit();
        trimmed_ = true;
    }
    return more;
}

void Nodes::reset_root() {
    Body& b = full(kRoot)->body;
    b.count = 0;
    b.pending = 0;
    b.edges.recent = -1;
}

Body& Nodes::promote(NodeId id) {
    const std::uint32_t unit = new_full(0);  // a body without a node
    PlainNode* n = plain(id);
    Body& b = full(unit)->body;
    b.count = (n->head & Node::kCounted) != 0;
    b.pending = (n->head & Node::kPending) != 0;
    b.ends = 1;
    b.writer = n->writer;
    if (n->to != kNoNode) {
        b.edges.token = n->token;
        b.edges.set({1, 0, n->to});
        b.edges.recent = n->token;
    }
    n->to = unit | kBody;
    return b;
}

void Nodes::demote(NodeId id) {
    if (!(id & kPlain)) return;
    PlainNode* n = plain(id);
    const NodeId to = n->to;
    if (!is_body_ref(to)) return;
    const Body& b = *body_at(to);
    const EdgeList::Where w = b.edges.where();
    if (b.child_count != 0 || b.ends != 1 || w.size_class != 0 || (b.writer & kManyWriters) != 0 ||
        b.count < 0 || b.count > 1 || b.pending < 0 || b.pending > 1)
        return;
    n->writer = b.writer;
    set_flags(*n, b.count, b.pending);
    if (w.size == 1) n->token = b.edges.token;
    n->to = w.size == 1 ? w.ref : kNoNode;
    if (readers_)
        retire_list_.put({Retired::body, 0, to & ~kBody});
    else
        full_.free(to & ~kBody);
}

void Nodes::set_flags(Node& n, std::int32_t count, std::int32_t pending) {
    n.head = n.len() | (count != 0 ? Node::kCounted : 0) | (pending != 0 ? Node::kPending : 0);
}

void Nodes::set_counts(NodeId id, std::int32_t count, std::int32_t pending) {
    Body* b = body(id);
    if (b == nullptr) {
        if (count >= 0 && count <= 1 && pending >= 0 && pending <= 1) {
            set_flags(*at(id), count, pending);
            return;
        }
        b = &promote(id);
    }
    b->count = count;
    b->pending = pending;
}

NodeId Nodes::find_or_add(NodeId id, Token token, NodeId to) {
    Body* b = body(id);
    if (b == nullptr) {
        PlainNode* n = plain(id);
        if (n->to == kNoNode) {
            n->token = token;
            n->to = to;
            ++num_edges_;
            return kNoNode;
        }
        if (n->token == token) return n->to;
        b = &promote(id);
    }
    b->edges.recent = token;
    const NodeId target = pool_.find_or_add(b->edges, token, to);
    num_edges_ += target == kNoNode;
    return target;
}

bool Nodes::replace(NodeId id, Token token, NodeId from, NodeId to) {
    if (Body* b = body(id)) return pool_.replace(b->edges, token, from, to);
    PlainNode* n = plain(id);
    if (n->to != from || n->token != token) return false;
    n->to = to;
    return true;
}

bool Nodes::erase(NodeId id, Token token, NodeId to) {
    if (Body* b = body(id)) {
        if (!pool_.erase(b->edges, token, to)) return false;
        if (b->edges.recent == token) b->edges.recent = -1;
        demote(id);
    } else {
        PlainNode* n = plain(id);
        if (n->to != to || n->token != token) return false;
        n->to = kNoNode;
    }
    --num_edges_;
    return true;
}

void Nodes::copy_edges(NodeId from, NodeId to) {
    EdgeList& into = body(to)->edges;
    if (const Body* b = body(from)) {
        pool_.copy(b->edges, into);
        into.recent = b->edges.recent;
    } else if (const PlainNode* n = plain(from); n->to != kNoNode) {
        into.token = n->token;
        into.set({1, 0, n->to});
        into.recent = n->token;
    }
    num_edges_ += into.where().size;
}

const char* Nodes::violation(NodeId id) const {
    const Body* b = body(id);
    return b != nullptr ? pool_.violation(b->edges) : nullptr;
}

bool Nodes::finds(NodeId id, std::size_t i) const {
    const Body* b = body(id);
    return b == nullptr || pool_.finds(b->edges, static_cast<std::uint32_t>(i));
}

}  // namespace suffixsvc
