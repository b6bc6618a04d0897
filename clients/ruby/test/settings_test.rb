# frozen_string_literal: true

require_relative "helper"

class SettingsTest < TestCase
  def test_all_forms_of_a_duration
    { 30 => 30, 0.5 => 0.5, "30s" => 30, "1.5m" => 90, "5d" => 432_000, "250ms" => 0.25, "2h" => 7200, "7" => 7,
      "1h30m" => 5400, "1m1.5s" => 61.5, 3r / 2 => 1.5, 0 => 0 }.each do |given, expected|
      assert_in_delta expected, LockKeeper.seconds(given), 1e-9
    end
  end

  def test_nonsense_is_no_duration
    ["", "s", "-1s", "1 s", "1e3", "inf", "30S", "٣s", "1s\n", "1m30", "1m s", -1, Float::NAN, Float::INFINITY].each do |given|
      assert_raises(ArgumentError, given.inspect) { LockKeeper.seconds(given) }
    end
    [nil, true, [1], :s, 1i].each { |given| assert_raises(TypeError) { LockKeeper.seconds(given) } }
  end

  def authorization
    @fake.seen.last.headers["authorization"]
  end

  def test_arguments_come_before_the_environment
    ENV.update("LOCKKEEPER_URL" => "http://nowhere.invalid", "LOCKKEEPER_API_KEY" => "of the environment")
    LockKeeper::Client.new(@fake.url, api_key: "of the argument").get("k")
    assert_equal "Bearer of the argument", authorization
  end

  def test_an_empty_variable_is_an_absent_one
    ENV.update("LOCKKEEPER_API_KEY_FILE" => "", "LOCKKEEPER_API_KEY" => "", "LOCKKEEPER_CA" => "")
    LockKeeper::Client.new(@fake.url).get("k")
    assert_nil authorization
  end

  def test_the_environment
    ENV.update("LOCKKEEPER_URL" => @fake.url, "LOCKKEEPER_API_KEY" => "secret\n", "LOCKKEEPER_TOKEN_PREFIX" => "app-")
    LockKeeper::Client.new.lock("k") { |lease| assert_match(/\Aapp-[0-9a-f]{32}\z/, lease.token) }
    assert_equal "Bearer secret", authorization
  end

  def test_a_file_has_the_api_key_and_is_read_each_time
    Dir.mktmpdir do |directory|
      file = Pathname.new(directory) + "key"
      ENV.update("LOCKKEEPER_API_KEY_FILE" => file.to_s, "LOCKKEEPER_API_KEY" => "not this one")
      [LockKeeper::Client.new(@fake.url), LockKeeper::Client.new(@fake.url, api_key: file)].each do |client|
        %w[first second].each do |key|
          file.write("#{key}\n")
          client.get("k")
          assert_equal "Bearer #{key}", authorization
        end
      end
    end
    error = assert_raises(LockKeeper::RequestRefused) { LockKeeper::Client.new(@fake.url).lock("k") { flunk } }
    assert_match(/\Athe API key in .*\/key cannot be read: No such file/, error.message)
    none = LockKeeper::Client.new(@fake.url, api_key: Pathname.new("/dev/null"))
    error = assert_raises(LockKeeper::RequestRefused) { none.lock("k") { flunk } }
    assert_equal "/dev/null has no API key", error.message
  end

  def test_a_file_that_is_missing_for_a_moment_loses_no_lease
    Dir.mktmpdir do |directory|
      file = Pathname.new(directory) + "key"
      file.write("key")
      LockKeeper::Client.new(@fake.url, api_key: file).lock("k", ttl: 3) do |lease|
        file.delete
        sleep 1.6
        file.write("key")
        until_true { @fake.count("PUT").positive? }
        assert lease.still_mine?
      end
    end
  end

  def test_while_a_file_has_no_api_key_the_last_one_counts
    Dir.mktmpdir do |directory|
      file = Pathname.new(directory) + "key"
      file.write("key")
      client = LockKeeper::Client.new(@fake.url, api_key: file)
      ["", "\n", "\ufeffkey", "two\nlines", "key\u00a0", "\xff", nil].each do |text|
        client.lock("k") { text ? file.write(text) : file.delete }
        assert free?, text.inspect
        assert_equal "Bearer key", authorization
      end
      file.write("other")
      client.get("k")
      assert_equal "Bearer other", authorization
    end
  end

  def test_an_api_key_that_no_header_may_have_is_refused_and_not_told
    { "s3cret\nX: y" => "line break", "s3cret\u00e9" => "visible ASCII" }.each do |key, told|
      client = LockKeeper::Client.new(@fake.url, api_key: key)
      error = assert_raises(LockKeeper::RequestRefused) { client.lock("k") { flunk } }
      assert_includes error.message, told
      refute_includes error.full_message, "s3cret"
    end
    assert_empty @fake.seen
  end

  def test_what_is_no_url_is_told
    told = "is not the URL of a service:"
    { "http://jane:s3cret@x" => "`...@x` #{told} only a host, a port and a path are allowed",
      "http://x/?a=b" => "`http://x/?a=b` #{told} only a host, a port and a path are allowed",
      "localhost:8080" => "`localhost:8080` #{told} use http:// or https://, or unix:FILE",
      "ftp://x" => "`ftp://x` #{told} use http:// or https://, or unix:FILE",
      "http://" => "`http://` #{told} write it like http://host:8080",
      "http://a b" => "`http://a b` #{told} write it like http://host:8080",
      "http://a\r\nX:1" => "`http://a\r\nX:1` #{told} write it like http://host:8080",
      "http://a:99999" => "`http://a:99999` #{told} write it like http://host:8080",
      "unix:" => "`unix:` #{told} name a file, as in unix:/run/lockkeeper/lockkeeper.sock",
      "http://a/locks/" => "`http://a/locks/` #{told} leave out /locks, as in http://host:8080" }.each do |url, text|
      assert_equal text, assert_raises(ArgumentError) { LockKeeper::Client.new(url) }.message
    end
    assert_equal "http://127.0.0.1:8080", LockKeeper::Service.new.url
    assert_equal "/base", LockKeeper::Service.new(url: "https://[::1]:1/base/").base
  end

  def test_a_file_of_tls_that_is_none_is_named
    ["/nowhere/ca.pem", __FILE__, "/dev/null"].each do |file|
      error = assert_raises(ArgumentError) { LockKeeper::Client.new("https://localhost", ca: file) }
      assert_match(/\A`ca`: .*#{Regexp.escape(file)}/, error.message)
      ENV["LOCKKEEPER_CA"] = file
      assert_includes assert_raises(ArgumentError) { LockKeeper::Client.new("https://localhost") }.message, file
      ENV.delete("LOCKKEEPER_CA")
      pair = { cert: file, cert_key: file }
      error = assert_raises(ArgumentError) { LockKeeper::Client.new("https://localhost", **pair) }
      assert_match(/\A`cert`.*#{Regexp.escape(file)}/, error.message)
    end
    error = assert_raises(ArgumentError) { LockKeeper::Client.new("https://localhost", cert: __FILE__) }
    assert_equal "`cert` and `cert_key` are given together", error.message
  end

  def test_no_inspect_has_a_secret
    ENV["LOCKKEEPER_API_KEY"] = "s3cret"
    [LockKeeper::Client.new(@fake.url), LockKeeper::Client.new(@fake.url, api_key: "s3cret")].each do |client|
      lease = client.lock("k")
      members = [client, client.instance_variable_get(:@service), lease, lease.instance_variable_get(:@claim)]
      members += members.flat_map { |one| one.instance_variables.map { |name| one.instance_variable_get(name) } }
      text = (members - [lease.token]).map(&:inspect).join
      refute_includes text, "s3cret"
      refute_includes text, lease.token
      assert_raises(TypeError) { Marshal.dump(client) }
      lease.release
    end
  end

  def test_no_proxy_of_the_environment
    ENV.update("http_proxy" => "http://nowhere.invalid:1", "HTTP_PROXY" => "http://nowhere.invalid:1")
    refute @client.get("k").held?
  end

  def test_a_unix_socket
    Dir.mktmpdir do |directory|
      listener = UNIXServer.new("#{directory}/socket")
      listener.define_singleton_method(:addr) { [nil, 0] }
      fake = Fake.new(listener)
      LockKeeper::Client.new("unix:#{directory}/socket").lock("k") { refute_empty fake.held }
      assert_equal "localhost", fake.seen.last.headers["host"]
      fake.close
    end
  end

  def test_keys
    odd = ["", nil, 5, :k, "/", "a/", "/a", "a//b", ".", "..", "../admin/locks/a", "a/./b", "a/..", "\xff"]
    odd.each do |key|
      %i[lock get force_release].each do |ask|
        assert_raises(LockKeeper::RequestRefused, key.inspect) { @client.public_send(ask, key) }
      end
    end
    assert_empty @fake.seen
    ["...", ".a", "a./b", "a b%2F?#", "ä/日本", "ä/日本".b, "ä".encode("ISO-8859-1")].each do |key|
      @client.lock(key) { refute_empty @fake.held }
    end
    assert_equal "ä", @fake.seen.last.key
    assert_equal "a b%2F?#", @fake.seen.map(&:key).uniq[3]
  end
end
