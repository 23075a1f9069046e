#include "wire/wire_codec.h"

#include <bit>
#include <cstddef>

namespace suffixsvc {

namespace {

// Field numbers of proto/suffixsvc/v1; a test compares the bytes with those of protobuf.
constexpr char kLengthDelimited = 2;
constexpr char tag(int field, char kind) { return static_cast<char>(field << 3 | kind); }
constexpr char kStreamId = tag(1, 0);
constexpr char kStreamSteps = tag(3, kLengthDelimited);
constexpr char kBatchItem = tag(1, kLengthDelimited);
constexpr char kItemReply = tag(1, kLengthDelimited);
constexpr char kReplySession = tag(1, kLengthDelimited);
constexpr char kReplySeq = tag(2, 0);
constexpr char kReplyDraft = tag(3, kLengthDelimited);
constexpr char kReplyLength = tag(4, 0);
constexpr char kDraftTokens = tag(1, kLengthDelimited);
constexpr char kDraftParents = tag(2, kLengthDelimited);
constexpr char kDraftProbs = tag(3, kLengthDelimited);
constexpr char kDraftSources = tag(4, kLengthDelimited);
constexpr char kDraftMatchLens = tag(5, kLengthDelimited);

std::size_t varint_size(std::uint64_t value) {
    return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

std::size_t field_size(std::size_t bytes) { return 1 + varint_size(bytes) + bytes; }

void put_varint(std::string& out, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
}

void put_head(std::string& out, char tag_byte, std::size_t bytes) {
    out.push_back(tag_byte);
    put_varint(out, bytes);
}

bool is_chain(const std::vector<DraftToken>& draft) {
    for (std::size_t i = 0; i < draft.size(); ++i)
        if (draft[i].parent != static_cast<std::int32_t>(i) - 1) return false;
    return true;
}

}  // namespace

std::string pack_step_reply(std::string_view session_id, std::uint64_t seq,
                            const std::vector<DraftToken>& draft, std::uint64_t length,
                            std::string_view sources) {
    const std::size_t n = draft.size(), fixed32_bytes = 4 * n;
    const bool chain = is_chain(draft);
    const std::size_t draft_bytes = n == 0 ? 0 : field_size(fixed32_bytes) * (chain ? 3 : 4) + field_size(n);
    const std::size_t reply_bytes = (session_id.empty() ? 0 : field_size(session_id.size())) +
                                    (seq == 0 ? 0 : 1 + varint_size(seq)) + field_size(draft_bytes) +
                                    (length == 0 ? 0 : 1 + varint_size(length));
    const std::size_t item_bytes = field_size(reply_bytes);

    std::string out;
    out.reserve(field_size(item_bytes));
    put_head(out, kBatchItem, item_bytes);
    put_head(out, kItemReply, reply_bytes);
    if (!session_id.empty()) {
        put_head(out, kReplySession, session_id.size());
        out.append(session_id);
    }
    if (seq != 0) {
        out.push_back(kReplySeq);
        put_varint(out, seq);
    }
    put_head(out, kReplyDraft, draft_bytes);
    // Fixed-width fields are little-endian, as the machines are (segment/format/segment_format.h).
    const auto put_fixed32s = [&](char tag_byte, auto field) {
        put_head(out, tag_byte, fixed32_bytes);
        for (const DraftToken& t : draft) out.append(reinterpret_cast<const char*>(&(t.*field)), 4);
    };
    if (n != 0) {
        put_fixed32s(kDraftTokens, &DraftToken::token);
        if (!chain) put_fixed32s(kDraftParents, &DraftToken::parent);
        put_fixed32s(kDraftProbs, &DraftToken::p);
        put_head(out, kDraftSources, n);
        for (const DraftToken& t : draft) out.push_back(t.source < sources.size() ? sources[t.source] : '\0');
        put_fixed32s(kDraftMatchLens, &DraftToken::match_len);
    }
    if (length != 0) {
        out.push_back(kReplyLength);
        put_varint(out, length);
    }
    return out;
}

std::string pack_stream_reply(std::uint64_t id, const std::vector<std::string>& items) {
    std::size_t bytes = 0;
    for (const std::string& item : items) bytes += item.size();
    std::string out;
    out.reserve(1 + varint_size(id) + field_size(bytes));
    if (id != 0) {
        out.push_back(kStreamId);
        put_varint(out, id);
    }
    put_head(out, kStreamSteps, bytes);
    for (const std::string& item : items) out.append(item);
    return out;
}

}  // namespace suffixsvc
