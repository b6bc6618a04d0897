# frozen_string_literal: true

require "socket"

module LockKeeper
  # A connection to one of the service's addresses. Each wait has an end on the clock, and another
  # thread may abort it: `Timeout` would raise anywhere.
  class Connection
    CONNECT = 5.0 # seconds for a connection to one address, and for the name
    STAGGER = 0.25 # seconds from one address to the next, which are tried side by side

    class << self
      # The time for a connection to one of so many addresses.
      def longest(count)
        CONNECT + STAGGER * count
      end
    end

    def initialize
      @is_aborted = false
    end

    # Connects to the first of the addresses that answers, and returns that one.
    def open(addresses)
      waiting = addresses.dup
      attempts = {}
      failure = nil
      next_at = LockKeeper.now
      loop do
        raise IOError, "given up" if @is_aborted

        if !waiting.empty? && (attempts.empty? || LockKeeper.now >= next_at)
          address = waiting.shift
          next_at = LockKeeper.now + STAGGER
          begin
            attempts[begun(address)] = [address, LockKeeper.now + CONNECT]
          rescue SystemCallError => error
            failure = error
            next
          end
        end
        raise failure || Errno::ETIMEDOUT if attempts.empty?

        connected, failed = look(attempts, waiting.empty? ? nil : next_at)
        failure = failed || failure
        next unless connected

        @socket = @raw = connected
        return attempts.delete(connected).first
      end
    ensure
      attempts.each_key(&:close) if attempts
    end

    # Speaks TLS from now on.
    def secure(context, host, deadline)
      ssl = OpenSSL::SSL::SSLSocket.new(@raw, context)
      ssl.sync_close = true
      # Names of hosts alone are sent, addresses are not.
      ssl.hostname = host unless host.match?(/\A[0-9.]+\z|:/)
      @socket = ssl
      repeat(deadline) { ssl.connect_nonblock(exception: false) }
      ssl.post_connection_check(host)
    rescue OpenSSL::SSL::SSLError => error
      raise Certificates.failure(error, ssl.verify_result)
    end

    def write(text, deadline)
      until text.empty?
        count = repeat(deadline) { @socket.write_nonblock(text, exception: false) }
        text = text.byteslice(count..)
      end
    end

    # The next bytes; nil at the end.
    def read(deadline)
      repeat(deadline) { @socket.read_nonblock(65_536, exception: false) }
    end

    # From another thread. `shutdown` wakes a reader, and reaches the service also if a forked child
    # still has the socket.
    def abort
      @is_aborted = true
      @raw&.shutdown
    rescue SystemCallError, IOError
      nil
    end

    def close
      @raw&.shutdown
    rescue SystemCallError, IOError
      nil
    ensure
      @raw&.close
    end

    private

    def begun(address)
      socket = Socket.new(address.pfamily, Socket::SOCK_STREAM, 0)
      socket.setsockopt(:TCP, :NODELAY, true) if address.ip?
      socket.connect_nonblock(address, exception: false)
      socket
    rescue SystemCallError
      socket&.close
      raise
    end

    # Waits for a while; returns the socket that is connected, and the error of one that failed.
    def look(attempts, next_at)
      ends = attempts.each_value.map(&:last)
      wait = [TICK, *[*ends, *next_at].map { |moment| moment - LockKeeper.now }].min
      _, ready, = IO.select(nil, attempts.keys, nil, [wait, 0].max)
      failure = nil
      Array(ready).each do |socket|
        number = socket.getsockopt(:SOCKET, :ERROR).int
        return socket if number.zero?

        failure = SystemCallError.new(nil, number)
        attempts.delete(socket).then { socket.close }
      end
      attempts.to_a.each do |socket, (_, over)|
        next unless LockKeeper.now >= over

        failure = Errno::ETIMEDOUT.new
        attempts.delete(socket).then { socket.close }
      end
      [nil, failure]
    end

    # Repeats what would block, until the deadline.
    def repeat(deadline)
      loop do
        raise IOError, "given up" if @is_aborted

        found = yield
        return found unless %i[wait_readable wait_writable].include?(found)

        left = deadline - LockKeeper.now
        raise Errno::ETIMEDOUT if left <= 0

        set = [@raw]
        wait = [left, TICK].min
        found == :wait_readable ? IO.select(set, nil, nil, wait) : IO.select(nil, set, nil, wait)
      end
    end
  end
end
