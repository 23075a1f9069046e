#include "wire/framed_connection.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace suffixsvc {

namespace {

// u32, little-endian, as the machines are (segment/format/segment_format.h)
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kReadBytes = 1 << 16;
#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;  // Python ignores SIGPIPE
#endif

// The clock of Python's time.monotonic().
double seconds_now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
}

}  // namespace

FramedConnection::FramedConnection(StepDispatcher& dispatcher, int socket, std::size_t max_bytes)
    : dispatcher_(dispatcher), socket_(socket), max_bytes_(max_bytes) {}

UnhandledMessage FramedConnection::next() {
    while (true) {
        while (const auto message = next_message()) {
            std::optional<DispatchReply> reply = dispatcher_.answer(*message, seconds_now());
            if (!reply || !reply->items.empty()) {
                UnhandledMessage found{UnhandledMessage::Kind::message, std::string(*message), {}, 0};
                if (reply) found.items = std::move(reply->items);
                return found;
            }
            if (!send(reply->bytes)) return {};
        }
        if (wanted_ > kLengthBytes + max_bytes_)
            return {UnhandledMessage::Kind::too_long, {}, {}, wanted_ - kLengthBytes};
        if (!read()) return {};
    }
}

std::optional<std::string_view> FramedConnection::next_message() {
    const std::size_t here = end_ - begin_;
    if (here < kLengthBytes) return std::nullopt;
    std::uint32_t length = 0;
    std::memcpy(&length, buffer_.data() + begin_, kLengthBytes);
    wanted_ = kLengthBytes + length;
    if (length > max_bytes_ || here < wanted_) return std::nullopt;
    const std::string_view message(buffer_.data() + begin_ + kLengthBytes, length);
    begin_ += wanted_;
    wanted_ = 0;
    return message;
}

bool FramedConnection::read() {
    std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
    if (end_ == 0 && buffer_.size() != kReadBytes) {
        buffer_ = std::vector<char>(kReadBytes);  // releases the memory of a long message
    } else if (end_ == buffer_.size()) {
        // Grows by doubling: a length that a client announces reserves no memory.
        buffer_.resize(2 * buffer_.size());
    }
    ssize_t n = 0;
    do n = ::recv(socket_, buffer_.data() + end_, buffer_.size() - end_, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) end_ += static_cast<std::size_t>(n);
    return n > 0;
}

bool FramedConnection::send(std::string_view message) {
    const auto length = static_cast<std::uint32_t>(message.size());
    std::string frame(reinterpret_cast<const char*>(&length), kLengthBytes);
    frame += message;
    std::size_t at = 0;
    while (at < frame.size()) {
        const ssize_t n = ::send(socket_, frame.data() + at, frame.size() - at, kSendFlags);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += static_cast<std::size_t>(n);
    }
    return true;
}

}  // namespace suffixsvc
