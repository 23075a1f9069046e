#include "wire/framed_connection.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace suffixsvc {

namespace {

constexpr std::size_t kLengthBytes = 4;  // u32, little endian
constexpr std::size_t kReadBytes = 1 << 16;
#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;  // Python ignores SIGPIPE
#endif

std::size_t length_of(const char* bytes) {
    std::size_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
    return length;
}

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
    const std::size_t length = length_of(buffer_.data() + begin_);
    wanted_ = kLengthBytes + length;
    if (length > max_bytes_ || here < wanted_) return std::nullopt;
    const std::string_view message(buffer_.data() + begin_ + kLengthBytes, length);
    begin_ += wanted_;
    wanted_ = 0;
    return message;
}

bool FramedConnection::read() {
    ensure_space();
    ssize_t n = 0;
    do n = ::recv(socket_, buffer_.data() + end_, buffer_.size() - end_, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) end_ += static_cast<std::size_t>(n);
    return n > 0;
}

void FramedConnection::ensure_space() {
    std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
    if (end_ == 0 && buffer_.size() != kReadBytes) {
        buffer_ = std::vector<char>(kReadBytes);  // releases the memory of a long message
    } else if (end_ == buffer_.size()) {
        // Grows by doubling: a length that a client announces reserves no memory.
        buffer_.resize(2 * buffer_.size());
    }
}

bool FramedConnection::send(std::string_view message) {
    std::string frame(kLengthBytes, '\0');
    for (std::size_t i = 0; i < kLengthBytes; ++i)
        frame[i] = static_cast<char>(message.size() >> 8 * i & 0xff);
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
