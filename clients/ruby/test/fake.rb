# frozen_string_literal: true

require "json"
require "socket"
require "uri"

# A service in memory, of which every answer can be replaced.
class Fake
  Seen = Struct.new(:method, :key, :headers, :body)

  attr_reader :held, :seen, :replace, :url, :port

  def initialize(listener = TCPServer.new("127.0.0.1", 0))
    @held = {} # key: [token, fencing token]
    @seen = []
    @number = 100
    @replace = {} # method: a call with (key, headers, body) that may return [status, body]
    @mutex = Mutex.new
    @listener = listener
    @port = listener.addr[1]
    @url = "http://127.0.0.1:#{@port}"
    @thread = Thread.new { loop { serve(@listener.accept) } }
    @thread.report_on_exception = false
  end

  def close
    @thread.kill
    @listener.close
  end

  def count(method)
    @seen.count { |one| one.method == method }
  end

  def self.problem(status, code, **members)
    [status, { code: code, detail: "by the test", type: "urn:lockkeeper:#{code}" }.merge(members)]
  end

  # About several keys: it waits for none.
  def several(method, token, body)
    keys = (body["keys"] || body["leases"]).map { |one| one["key"] }
    mine = ->(key) { @held.fetch(key, []).first == token }
    @mutex.synchronize do
      if method == "POST"
        busy = keys.find { |key| @held.key?(key) && !mine.call(key) }
        return problem(409, "lock_held", key: busy, owner: "other", retry_after_ms: 1500) if busy

        keys.each { |key| @held[key] ||= [token, @number += 1] }
      end
      lost = keys.reject(&mine).map { |key| { key: key } }
      leases = keys.select(&mine).map { |key| { key: key, fencing_token: @held[key].last, ttl_ms: body["ttl_ms"] } }
      leases.each { |one| @held.delete(one[:key]) } if method == "DELETE"
      return problem(409, "lock_lost", lost: lost) if lost.any?
      return [204, nil] if method == "DELETE"

      [200, { token: token, leases: leases, ttl_ms: body["ttl_ms"], waited_ms: 0 }]
    end
  end

  def answer(method, key, headers, body)
    token = headers["lock-token"]
    return several(method, token, body) if body["keys"] || body["leases"]

    plain = key.delete_suffix("/refresh")
    has, number = @held[plain]
    named = body.fetch("fencing_token", number).to_i
    return problem(409, "lock_lost", fencing_token: number) if has && has == token && named != number && method != "GET"
    return acquire(key, token, body) if method == "POST"

    @mutex.synchronize do
      return [200, { key: key, held: @held.key?(key), waiters: 0 }] if method == "GET"
      return problem(409, "lock_lost") if @held.fetch(plain, [""]).first != token
      return [200, grant(plain, token, body)] if method == "PUT"

      @held.delete(key)
      [204, nil]
    end
  end

  private

  def problem(...)
    self.class.problem(...)
  end

  def acquire(key, token, body)
    over = LockKeeper.now + body.fetch("wait_ms", 0) / 1000.0
    loop do
      @mutex.synchronize do
        if !@held.key?(key) || @held[key].first == token
          @held[key] = [token, @number += 1] if !@held.key?(key) || body.key?("fencing_token")
          return [201, grant(key, token, body)]
        end
      end
      return problem(409, "lock_held", owner: "other", retry_after_ms: 1500) if LockKeeper.now >= over

      sleep 0.02
    end
  end

  def grant(key, token, body)
    { token: token, key: key, fencing_token: @held[key].last, ttl_ms: body["ttl_ms"], waited_ms: 0 }
  end

  def serve(client)
    Thread.new do
      reply(client)
    rescue SystemCallError, IOError, OpenSSL::SSL::SSLError
      nil
    ensure
      client.close
    end
  end

  def line_of(client)
    client.gets&.chomp or raise IOError, "the client has gone"
  end

  def reply(client)
    if client.is_a?(BasicSocket) && client.recv(1, Socket::MSG_PEEK) == "\x16"
      return client.write("HTTP/1.1 400 No TLS here\r\n\r\n")
    end

    client.accept unless client.is_a?(BasicSocket) # of TLS
    method, target = line_of(client).split
    headers = {}
    until (line = line_of(client)).empty?
      name, text = line.split(": ", 2)
      headers[name.downcase] = text
    end
    content = client.read(headers.fetch("content-length", 0).to_i)
    path, query = target.split("?", 2)
    body = content.empty? ? {} : JSON.parse(content)
    body.merge!(URI.decode_www_form(query).to_h) if query
    key = URI::DEFAULT_PARSER.unescape(path).force_encoding("UTF-8").split("/", 3).last
    @seen << Seen.new(method, key, headers, body)
    status, members = @replace[method]&.call(key, headers, body) || answer(method, key, headers, body)
    text = members.nil? ? "" : JSON.generate(members)
    more = status == 409 ? "Retry-After: 1\r\n" : ""
    client.write("HTTP/1.1 #{status} Of the test\r\n#{more}Content-Length: #{text.bytesize}\r\n\r\n#{text}")
  end
end
