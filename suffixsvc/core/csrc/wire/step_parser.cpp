#include <limits>

#include "wire/wire_codec.h"

namespace suffixsvc {

namespace {

constexpr std::uint32_t kVarint = 0, kBytes = 2;
constexpr std::int32_t kLastSource = 7;  // largest value of DraftSource

constexpr std::uint32_t key(std::uint32_t field, std::uint32_t kind) { return field << 3 | kind; }

// Reads consecutive fields. After a failure every read fails.
class FieldReader {
  public:
    explicit FieldReader(std::string_view data) : data_(data) {}

    bool ok() const { return ok_; }
    bool more() const { return ok_ && at_ < data_.size(); }

    std::uint64_t varint() {
        std::uint64_t value = 0;
        for (unsigned shift = 0; shift < 64 && at_ < data_.size(); shift += 7) {
            const auto byte = static_cast<unsigned char>(data_[at_++]);
            if (shift == 63 && byte > 1) break;
            value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
            if (byte < 0x80) return value;
        }
        ok_ = false;
        return 0;
    }

    // The key of a field. All known keys take one byte; a longer one fails and is left to protobuf.
    std::uint64_t key_of_field() {
        const auto byte = static_cast<unsigned char>(data_[at_++]);
        if (byte >= 0x80) ok_ = false;
        return byte;
    }

    // A varint of at most `max`.
    std::uint64_t number(std::uint64_t max) {
        const std::uint64_t value = varint();
        if (value > max) ok_ = false;
        return value;
    }

    std::string_view bytes() {
        const std::size_t before = at_;
        const std::uint64_t size = varint();
        // protobuf rejects lengths of more than five bytes, even if the last ones are zero
        if (!ok_ || at_ - before > 5 || size > data_.size() - at_) {
            ok_ = false;
            return {};
        }
        const std::string_view out = data_.substr(at_, static_cast<std::size_t>(size));
        at_ += static_cast<std::size_t>(size);
        return out;
    }

  private:
    std::string_view data_;
    std::size_t at_ = 0;
    bool ok_ = true;
};

constexpr std::uint64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

bool parse_verified(std::string_view data, StepRequest& step) {
    FieldReader in(data);
    step.width = step.accepted = 0;
    while (in.more()) switch (in.key_of_field()) {
            case key(1, kVarint):
                step.width = static_cast<std::int32_t>(in.number(kMaxInt32));
                break;
            case key(2, kVarint):
                step.accepted = static_cast<std::int32_t>(in.number(kMaxInt32));
                break;
            case key(3, kVarint):
                in.number(kLastSource);
                break;
            default:
                return false;
        }
    return in.ok() && step.accepted < step.width;
}

bool parse_step(std::string_view data, StepRequest& step) {
    FieldReader in(data);
    bool verified = false;
    while (in.more()) switch (in.key_of_field()) {
            case key(1, kBytes):
                step.session_id = in.bytes();
                break;
            case key(2, kVarint):
                step.seq = in.varint();
                break;
            case key(3, kBytes):
                step.tokens = in.bytes();
                break;
            case key(4, kVarint):
                step.at = static_cast<std::int64_t>(in.number(kMaxInt64));
                break;
            case key(5, kVarint):
                step.max_draft_tokens = static_cast<std::int32_t>(in.number(kMaxInt32));
                break;
            case key(7, kVarint):
                step.tree = in.number(1) == 1 ? TreeMode::tree : TreeMode::chain;
                break;
            case key(8, kBytes):  // protobuf would merge a second one into the first
                if (verified || !parse_verified(in.bytes(), step)) return false;
                verified = true;
                break;
            default:
                return false;
        }
    return in.ok();
}

}  // namespace

std::optional<ParsedBatch> parse_steps(std::string_view message, std::size_t max_steps) {
    ParsedBatch batch;
    FieldReader in(message);
    bool found = false;
    while (in.more()) switch (in.key_of_field()) {
            case key(1, kVarint):
                batch.id = in.varint();
                break;
            case key(6, kVarint):
                batch.no_reply = in.varint() != 0;
                break;
            case key(3, kBytes): {
                if (found) return std::nullopt;
                found = true;
                FieldReader items(in.bytes());
                while (items.more()) {
                    if (batch.steps.size() == max_steps) return std::nullopt;
                    if (items.key_of_field() != key(1, kBytes)) return std::nullopt;
                    if (!parse_step(items.bytes(), batch.steps.emplace_back())) return std::nullopt;
                }
                if (!items.ok()) return std::nullopt;
                break;
            }
            default:
                return std::nullopt;
        }
    if (!in.ok() || !found) return std::nullopt;
    return batch;
}

}  // namespace suffixsvc
