# frozen_string_literal: true

module LockKeeper
  # A request in a thread of its own: no name server and no slow answer keeps the caller longer than it
  # wants. Each has its own connection, so no restart, fork or abandoned request can spoil another one.
  class Call
    attr_reader :answer, :sent, :began

    # `limit` is the time for the answer once the connection is made, which has a limit of its own.
    # `mutex` and `changed` are those of the thread that waits for more than this call.
    def initialize(service, method, path, limit:, token: nil, body: nil, mutex: Mutex.new,
                   changed: ConditionVariable.new)
      @service = service
      @method = method
      @path = path
      @limit = limit
      @token = token
      @body = body
      @mutex = mutex
      @changed = changed
      @connection = Connection.new
      @was_sent = false
      # A lease is counted from the sending, and before that from here.
      @began = @sent = LockKeeper.now
      @over = @began + Connection::CONNECT
      start
    end

    # Returns the answer; nil at that moment, or as soon as the block says that it is over.
    def wait(moment = Float::INFINITY)
      @mutex.synchronize do
        loop do
          return @answer if @answer || (block_given? && yield)

          abandon if LockKeeper.now >= @over + TICK # The thread is in a call that has no end, or was late.
          return @answer if LockKeeper.now >= moment

          left = [moment, @over + TICK].min - LockKeeper.now
          @changed.wait(@mutex, [[left, TICK].min, 0.001].max) unless @answer
        end
      end
    end

    def abort
      @connection.abort
    end

    def inspect
      "#<#{self.class} #{@method} #{@path}>"
    end

    private

    def start
      Thread.new { run }.report_on_exception = false
    rescue ThreadError # The process has too many threads.
      run
    end

    def run
      answer = failed("the request failed")
      answer = ask
    rescue Exception => error # rubocop:disable Lint/RescueException -- a thread that is killed, too, is no answer
      answer = failure_of(error)
    ensure
      @mutex.synchronize do
        @answer ||= answer
        @changed.broadcast
      end
    end

    def abandon
      abort
      @answer ||= failed("timeout after #{format("%.1f", LockKeeper.now - @began)} s")
    end

    def failed(why)
      Answer.new(failure: "no answer from #{@service.url}: #{why}").tap { |one| one.was_sent = @was_sent }
    end

    def failure_of(error)
      # With TLS 1.3 the service refuses a client certificate after the handshake.
      error = Certificates.failure(error) if error.is_a?(OpenSSL::SSL::SSLError)
      # Without a connection it is a file of this machine that is wrong.
      return failed(Service.words(error)).tap { |one| one.is_final = error.is_a?(Certificates::Refused) } if @is_ready

      Answer.new(failure: error.message).tap { |one| one.was_sent = false; one.is_final = true }
    end

    def ask
      headers = @service.headers
      # Never in a URL: logs keep those.
      headers["Lock-Token"] = @token if @token
      text = @body ? JSON.generate(@body) : ""
      headers["Content-Length"] = text.bytesize.to_s if @body || @method == "POST"
      head = headers.map { |name, value| "#{name}: #{value}\r\n" }.join
      request = "#{@method} #{@service.base}#{@path} HTTP/1.1\r\n#{head}\r\n#{text}".b
      @is_ready = true
      addresses = @service.addresses
      @over = LockKeeper.now + Connection.longest(addresses.size) + Connection::CONNECT
      @service.connect(@connection, addresses)
      @was_sent = true
      @sent = LockKeeper.now
      @over = @sent + @limit
      @connection.write(request, @over)
      answer = Answer.read(@connection, @over)
      answer.has_api_key = headers.key?("Authorization")
      answer
    rescue Errno::ETIMEDOUT
      failed("timeout after #{format("%.1f", LockKeeper.now - @began)} s")
    ensure
      @connection.close
    end
  end
end
