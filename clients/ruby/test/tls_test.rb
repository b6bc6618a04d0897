# frozen_string_literal: true

require_relative "helper"

class TlsTest < TestCase
  KEY = OpenSSL::PKey::RSA.new(2048)

  def certificate(name, issuer: nil, alternative: nil, over: 3600)
    one = OpenSSL::X509::Certificate.new
    one.version = 2
    one.serial = rand(1..1 << 60)
    one.subject = OpenSSL::X509::Name.new([["CN", name]])
    one.issuer = issuer ? issuer.subject : one.subject
    one.public_key = KEY.public_key
    one.not_before = Time.now - 7200
    one.not_after = Time.now + over
    extensions = OpenSSL::X509::ExtensionFactory.new
    one.add_extension(extensions.create_extension("basicConstraints", "CA:TRUE", true)) unless issuer
    one.add_extension(extensions.create_extension("subjectAltName", alternative)) if alternative
    one.sign(KEY, "SHA256")
  end

  def file(name, text)
    path = Pathname.new(@directory) + name
    path.write(text)
    path
  end

  def setup
    super
    @directory = Dir.mktmpdir
    @ca = certificate("an authority")
    @ca_file = file("ca.pem", @ca.to_pem)
  end

  def teardown
    super
    FileUtils.rm_rf(@directory)
  end

  # The URL of a service with a certificate.
  def serve(certificate, host: "127.0.0.1", wants: false)
    context = OpenSSL::SSL::SSLContext.new
    context.add_certificate(certificate, KEY)
    if wants
      context.verify_mode = OpenSSL::SSL::VERIFY_PEER | OpenSSL::SSL::VERIFY_FAIL_IF_NO_PEER_CERT
      context.cert_store = OpenSSL::X509::Store.new.tap { |store| store.add_cert(@ca) }
    end
    listener = OpenSSL::SSL::SSLServer.new(TCPServer.new("127.0.0.1", 0), context)
    listener.start_immediately = false
    fake = Fake.new(listener)
    yield "https://#{host}:#{fake.port}", fake
  ensure
    fake&.close
  end

  def refused(url, **settings)
    client = LockKeeper::Client.new(url, **settings)
    assert_raises(LockKeeper::RequestRefused) { client.lock("k", wait: 60) { flunk } }.message
  end

  def test_an_authority_of_ca_is_trusted_and_no_other
    serve(certificate("x", issuer: @ca, alternative: "IP:127.0.0.1,DNS:localhost")) do |url, fake|
      LockKeeper::Client.new(url, ca: @ca_file).lock("k") { refute_empty fake.held }
      ENV["LOCKKEEPER_CA"] = @ca_file.to_s
      LockKeeper::Client.new(url.sub("127.0.0.1", "localhost")).lock("k") { refute_empty fake.held }
      other = file("other.pem", certificate("another authority").to_pem)
      [{ ca: other }, {}].each do |settings|
        ENV.delete("LOCKKEEPER_CA")
        assert_equal "no answer from #{url}: its certificate is not signed by an authority that is trusted " \
                     "here: name the file of that authority (`ca`, LOCKKEEPER_CA)", refused(url, **settings)
      end
    end
  end

  def test_a_certificate_of_another_host_or_time_is_refused
    serve(certificate("x", issuer: @ca, alternative: "DNS:other.example")) do |url|
      assert_match(/its certificate is not accepted: .*(mismatch|does not match)/, refused(url, ca: @ca_file))
    end
    serve(certificate("x", issuer: @ca, alternative: "IP:127.0.0.1", over: -60)) do |url|
      assert_match(/its certificate is not accepted: .*expired\z/, refused(url, ca: @ca_file))
    end
  end

  def test_a_client_certificate
    own = { cert: file("own.pem", certificate("me", issuer: @ca).to_pem), cert_key: file("own.key", KEY.to_pem) }
    serve(certificate("x", issuer: @ca, alternative: "IP:127.0.0.1"), wants: true) do |url, fake|
      LockKeeper::Client.new(url, ca: @ca_file, **own).lock("k") { refute_empty fake.held }
      ENV.update("LOCKKEEPER_CERT" => own[:cert].to_s, "LOCKKEEPER_CERT_KEY" => own[:cert_key].to_s)
      LockKeeper::Client.new(url, ca: @ca_file).lock("k") { refute_empty fake.held }
      ENV.delete("LOCKKEEPER_CERT")
      ENV.delete("LOCKKEEPER_CERT_KEY")
      assert_includes refused(url, ca: @ca_file), "the service wants a client certificate that it trusts: name its files"
    end
  end
end
