// How the index keeps its nodes.
//
//   plain   {head link writer edge}               20 bytes: one text ends there, no other node's link leads
//                                                 there, at most one token followed. Most nodes.
//   full    {head link | body}                    48 bytes: everything
//   grown   {head link . ->}  { . . | body}       a plain node that became more than that keeps its name
//                                                 and finds its body elsewhere
//
// A node's name tells which slab it lies in: the top bit is set for plain and grown ones.
//
// Threads: as for Index.
#pragma once

#include <cstdint>
#include <span>

#include "edges.h"

namespace suffixsvc {

inline constexpr NodeId kRoot = 0;
// Flag of a writer: evidence from more than one, of which this is a recent one. Writers are below it.
inline constexpr std::uint32_t kManyWriters = 0x80000000u;

// What every node has.
struct Node {
    std::uint32_t head;  // length of the longest string, 28 bits, and flags; 0: dead, or no node
    NodeId link;         // root: none. In a dead node: the node that took its strings over

    static constexpr std::uint32_t kMostLen = (1u << 28) - 1;
    static constexpr std::uint32_t kGrown = 1u << 31;
    static constexpr std::uint32_t kCounted = 1u << 30;  // plain: count is 1
    static constexpr std::uint32_t kUnsent = 1u << 29;   // plain: unsent is 1
    static constexpr std::uint32_t kTheRoot = 1u << 28;  // so that its head is not 0

    std::uint32_t len() const { return head & kMostLen; }
};

struct Body {
    std::int32_t count = 0;   // occurrences that reached this node; 0 beyond max_context
    std::int32_t unsent = 0;  // the part of count that link does not know of yet
    EdgeList edges;
    Token recent = -1;           // the token that last followed it, as far as growing touched it
    std::uint32_t kids = 0;      // nodes whose link this is
    std::uint32_t kids_xor = 0;  // exclusive or of their ids
    std::uint32_t ends = 0;      // positions of live texts whose whole prefix is the node's string
    std::uint32_t writer = 0;    // the one writer of all its occurrences, or a recent one and kManyWriters
};

struct PlainNode : Node {
    std::uint32_t writer;
    Edge one;  // to kNoNode where nothing followed. Grown: one.to names the body
};
static_assert(sizeof(PlainNode) == 20);

struct FullNode : Node {
    Body body;
};
static_assert(sizeof(FullNode) == 48);

// A node as readers see it.
struct NodeView {
    std::uint32_t len;     // length of the longest string
    NodeId link;           // root: none
    std::int32_t count;    // occurrences that reached this node; 0 beyond max_context
    std::uint32_t writer;  // the one writer of all its occurrences, or a recent one and kManyWriters
    std::uint32_t fanout;  // edges
    Token recent;          // the token that last followed it, as far as growing touched it; or -1
};

class Nodes {
  public:
    Nodes() : plain_(1), full_(1) { clear(); }

    // Everything goes back to the system; the root alone is there again.
    void clear();
    // One text of one writer ends there.
    NodeId make_plain(std::uint32_t len, std::uint32_t writer);
    // No text ends there.
    NodeId make_full(std::uint32_t len);
    // Takes a node out; its name stays taken, and tells its heir, until free().
    void bury(NodeId id, NodeId heir);
    bool buried(NodeId id) const { return at(id)->head == 0; }
    void free(NodeId id);

    Node* at(NodeId id) const {
        return reinterpret_cast<Node*>(id & kPlain ? plain_.at(id & ~kPlain) : full_.at(id));
    }
    std::uint32_t len(NodeId id) const { return at(id)->len(); }
    NodeId link(NodeId id) const { return at(id)->link; }
    // Null for a plain node.
    Body* body(NodeId id) const {
        if (!(id & kPlain)) return &full(id)->body;
        const PlainNode* n = plain(id);
        return n->head & Node::kGrown ? &full(n->one.to)->body : nullptr;
    }
    // A plain node grows.
    Body& grown(NodeId id) {
        Body* b = body(id);
        return b != nullptr ? *b : grow(id);
    }
    // Undoes growing where the node is like most again.
    void shrink(NodeId id);

    std::int32_t count(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->count : (at(id)->head & Node::kCounted) != 0;
    }
    std::int32_t unsent(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->unsent : (at(id)->head & Node::kUnsent) != 0;
    }
    void set_counts(NodeId id, std::int32_t count, std::int32_t unsent);
    std::uint32_t ends(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->ends : 1;
    }
    std::uint32_t writer(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->writer : plain(id)->writer;
    }
    NodeView view(NodeId id) const {
        const Node* n = at(id);
        if (const Body* b = body(id))
            return {n->len(), n->link, b->count, b->writer, b->edges.size, b->recent};
        const PlainNode* p = plain(id);
        const bool followed = p->one.to != kNoNode;
        return {n->len(),  n->link,  (n->head & Node::kCounted) != 0,
                p->writer, followed, followed ? p->one.token : -1};
    }

    // ---- edges -----------------------------------------------------------------------------------
    std::span<const Edge> edges(NodeId id) const {
        if (const Body* b = body(id)) return {pool_.edges(b->edges), b->edges.size};
        const PlainNode* n = plain(id);
        return {&n->one, n->one.to != kNoNode ? 1u : 0u};
    }
    NodeId next(NodeId id, Token token) const {
        if (const Body* b = body(id)) return pool_.find(b->edges, token);
        const PlainNode* n = plain(id);
        return n->one.token == token ? n->one.to : kNoNode;
    }
    // Where the token leads, or kNoNode after adding an edge to `to`. Either way it is the recent one now.
    NodeId find_or_add(NodeId id, Token token, NodeId to);
    // Lets the token's edge lead to `to` where it leads to `from`; false where it does not.
    bool replace(NodeId id, Token token, NodeId from, NodeId to);
    // Erases the token's edge where it leads to `to`; false where it does not.
    bool erase(NodeId id, Token token, NodeId to);
    // Gives a full node without edges those of another.
    void copy_edges(NodeId from, NodeId to);

    // ---- fetching what will be looked at soon ----------------------------------------------------
    void prefetch(NodeId id) const { __builtin_prefetch(at(id)); }
    void prefetch_slot(NodeId id, Token token) const {
        if (const Body* b = body(id)) pool_.prefetch_slot(b->edges, token);
    }
    void prefetch_edge(NodeId id, Token token) const {
        if (const Body* b = body(id)) pool_.prefetch_edge(b->edges, token);
    }

    // ---- as a whole ------------------------------------------------------------------------------
    std::uint64_t live() const { return live_; }
    std::uint64_t num_edges() const { return num_edges_; }
    std::size_t bytes() const { return plain_.bytes() + full_.bytes() + pool_.bytes(); }
    std::size_t used_bytes() const { return plain_.used_bytes() + full_.used_bytes() + pool_.used_bytes(); }
    // Calls f(id) for every node.
    template <typename F>
    void for_each(F&& f) const {
        auto nodes_of = [&](const auto& slab, NodeId flag) {
            slab.for_each_page([&](NodeId first, std::uint32_t fresh, std::uint32_t) {
                for (NodeId id = first | flag; id < (first | flag) + fresh; ++id)
                    if (at(id)->head != 0) f(id);
            });
        };
        nodes_of(full_, 0);
        nodes_of(plain_, kPlain);
    }
    // A number below dense_end() for each name, for tables that are indexed by node.
    std::size_t dense(NodeId id) const { return id & kPlain ? full_.end() + std::size_t{id & ~kPlain} : id; }
    std::size_t dense_end() const { return full_.end() + std::size_t{plain_.end()}; }
    bool exists(NodeId id) const {
        return (id & kPlain ? (id & ~kPlain) < plain_.end() : id < full_.end()) && at(id)->head != 0;
    }
    const char* broken(NodeId id) const;

  private:
    static constexpr NodeId kPlain = 0x80000000u;

    PlainNode* plain(NodeId id) const { return reinterpret_cast<PlainNode*>(plain_.at(id & ~kPlain)); }
    FullNode* full(NodeId id) const { return reinterpret_cast<FullNode*>(full_.at(id)); }
    std::uint32_t new_full(std::uint32_t head);
    Body& grow(NodeId id);

    Slab<20, 1024> plain_;
    Slab<48, 256> full_;
    EdgePool pool_;
    std::uint64_t live_ = 0;
    std::uint64_t num_edges_ = 0;
};

}  // namespace suffixsvc
