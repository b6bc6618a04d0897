# frozen_string_literal: true

require_relative "helper"

class ConnectionTest < TestCase
  # Addresses at which nothing answers: a queue of connections that is full.
  def silent
    listener = Socket.new(:INET, :STREAM)
    listener.bind(Addrinfo.tcp("127.0.0.1", 0))
    listener.listen(0)
    address = listener.connect_address
    full = Array.new(4) do
      Socket.new(:INET, :STREAM).tap { |socket| socket.connect_nonblock(address, exception: false) }
    end
    skip "a full queue is no silence here" if full.last.wait_writable(0.3)
    yield address
  ensure
    [listener, *full].compact.each(&:close)
  end

  def refused
    port = TCPServer.open("127.0.0.1", 0) { |listener| listener.addr[1] }
    Addrinfo.tcp("127.0.0.1", port)
  end

  def good
    Addrinfo.tcp("127.0.0.1", @fake.port)
  end

  def test_a_silent_address_costs_a_moment_and_a_refused_one_nothing
    silent do |dead|
      with(LockKeeper::Connection, :CONNECT, 600) do
        [[dead, good], [refused, good], [dead, refused, good], [good, dead]].each do |addresses|
          connection = LockKeeper::Connection.new
          Timeout.timeout(60) { assert_equal good.ip_port, connection.open(addresses).ip_port }
          connection.close
        end
      end
    end
  end

  def test_the_address_of_the_last_connection_comes_first
    other = Addrinfo.tcp("127.0.0.9", @fake.port)
    service = LockKeeper::Service.new(url: "http://service.test:#{@fake.port}")
    Addrinfo.stub(:getaddrinfo, [other, good]) do
      assert_equal [other, good].inspect, service.addresses.inspect
      service.connect(LockKeeper::Connection.new, [good])
      assert_equal [good, other].inspect, service.addresses.inspect
    end
  end

  def test_both_families_are_tried_by_turns
    service = LockKeeper::Service.new(url: "http://service.test")
    found = %w[::1 ::2 ::3 127.0.0.1 127.0.0.2].map { |address| Addrinfo.tcp(address, 80) }
    [[found, %w[::1 127.0.0.1 ::2 127.0.0.2 ::3]], [found.rotate(3), %w[127.0.0.1 ::1 127.0.0.2 ::2 ::3]]].each do |all, expected|
      Addrinfo.stub(:getaddrinfo, all) { assert_equal expected, service.addresses.map(&:ip_address) }
    end
  end

  def test_a_silent_address_alone_has_an_end_and_one_that_refuses_is_told
    with(LockKeeper::Connection, :CONNECT, 0.3) do
      silent do |dead|
        assert_raises(Errno::ETIMEDOUT) { LockKeeper::Connection.new.open([dead]) }
        assert_raises(Errno::ECONNREFUSED) { LockKeeper::Connection.new.open([refused]) }
      end
    end
  end

  def test_another_thread_aborts_a_connection_and_a_read
    silent do |dead|
      connection = LockKeeper::Connection.new
      thread = Thread.new { connection.open([dead]) }
      thread.report_on_exception = false
      connection.abort
      assert_equal "given up", assert_raises(IOError) { thread.join(4).value }.message
    end
    connection = LockKeeper::Connection.new
    connection.open([good])
    thread = Thread.new { connection.read(LockKeeper.now + 60) }
    thread.report_on_exception = false
    until_true { thread.status == "sleep" }
    connection.abort
    assert_raises(IOError) { thread.join(15) or flunk("it reads on") }
  end

  def test_a_name_server_that_is_silent_keeps_no_caller
    silence = Queue.new
    Addrinfo.stub(:getaddrinfo, ->(*) { silence.pop }) do
      with(LockKeeper::Connection, :CONNECT, 0.2) do
        error = assert_raises(LockKeeper::ServiceUnavailable) { @client.force_release("k") }
        assert_match(/timeout after/, error.message)
      end
    end
  end

  def test_a_slow_connection_leaves_the_answer_its_time
    with(LockKeeper::Claim, :HEAR_OUT, 2) do
      open = LockKeeper::Connection.instance_method(:open)
      slow = Class.new(LockKeeper::Connection) { define_method(:open) { |all| sleep(2.2) && open.bind_call(self, all) } }
      LockKeeper::Connection.stub(:new, ->(*) { slow.allocate.tap { |one| one.send(:initialize) } }) do
        @client.lock("k") { refute free? }
      end
      assert free?
      assert_equal 1, @fake.count("DELETE")
    end
  end

  def test_an_answer_is_whole_and_has_an_end
    listener = TCPServer.new("127.0.0.1", 0)
    client = LockKeeper::Client.new("http://127.0.0.1:#{listener.addr[1]}")
    { "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{}" => "cut", "HTTP/1.1 200 OK\r\n\r\n#{" " * (9 << 20)}" => "too long",
      "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{}" => "too long",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}" => "cut",
      "HTTP/1.1 200 OK\r\nContent-Le" => "cut", "SSH-2.0-OpenSSH\r\n\r\n" => "not HTTP" }.each do |answer, text|
      Thread.new do
        connection = listener.accept
        connection.readpartial(4096)
        connection.write(answer)
        connection.close
      rescue SystemCallError
        nil
      end
      error = assert_raises(LockKeeper::ServiceUnavailable) { client.force_release("k") }
      assert_includes error.message, text
    end
  ensure
    listener.close
  end

  def test_answers_in_chunks_after_a_hint_and_without_a_length_are_read
    listener = TCPServer.new("127.0.0.1", 0)
    client = LockKeeper::Client.new("http://127.0.0.1:#{listener.addr[1]}")
    body = '{"key":"k","held":false}'
    ["HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: #{body.size}\r\n\r\n#{body}",
     "HTTP/1.1 200 OK\r\n\r\n#{body}",
     "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\n#{body[0, 5]}\r\n13\r\n#{body[5..]}\r\n0\r\n\r\n"].each do |answer|
      Thread.new do
        connection = listener.accept
        connection.readpartial(4096)
        answer.each_char.each_slice(7) { |part| connection.write(part.join) }
        connection.close
      end
      refute client.get("k").held?
    end
  ensure
    listener.close
  end
end
