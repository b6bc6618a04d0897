# frozen_string_literal: true

module LockKeeper
  # The service's address and its API key.
  class Service
    DEFAULT = "http://127.0.0.1:8080"
    READ = 5.0 # seconds for the repeats of a look
    ANSWER = 5.0 # seconds for an answer, besides a wait

    attr_reader :url, :base, :token_prefix

    def initialize(url: nil, api_key: nil, ca: nil, cert: nil, cert_key: nil, token_prefix: nil)
      @url = (url || Service.variable("URL") || DEFAULT).to_s.dup.freeze
      @reader = Service.reader(api_key)
      @token_prefix = token_prefix || Service.variable("TOKEN_PREFIX") || ""
      parse
      ca ||= Service.variable("CA")
      cert ||= Service.variable("CERT")
      cert_key ||= Service.variable("CERT_KEY")
      @tls = Certificates.context(ca, cert, cert_key) if @scheme == "https"
    end

    def inspect
      "#<#{self.class} #{@url}>"
    end

    # A variable of the command line; an empty one is an absent one.
    def self.variable(name)
      ENV.fetch("LOCKKEEPER_#{name}", nil).then { |text| text unless text.to_s.empty? }
    end

    def self.words(error)
      case error
      when SystemCallError then SystemCallError.new(nil, error.errno).message
      when SocketError then error.message.sub(/\Agetaddrinfo: /, "")
      else error.message
      end
    end

    # A call that reads the API key. No instance variable has it, so no `inspect` shows it.
    def self.reader(given)
      file = given unless given.nil? || given.is_a?(String)
      text = given if given.is_a?(String)
      unless given
        file = variable("API_KEY_FILE")
        text = variable("API_KEY") unless file
      end
      return -> { api_key(text.to_s) } unless file

      last = nil
      lambda do
        last = api_key_in(file) # Each time: a new key needs no restart.
      rescue IOError
        last || raise # While the file has none, as it is being rewritten.
      end
    end

    def self.api_key_in(file)
      api_key(File.binread(file)) or raise IOError, "#{file} has no API key"
    rescue SystemCallError => error
      raise IOError, "the API key in #{file} cannot be read: #{words(error)}"
    end

    def self.api_key(text)
      key = text.b.sub(/[\r\n]+\z/, "")
      if key.match?(/[\r\n]/)
        raise IOError, "the API key has a line break: set `api_key`, LOCKKEEPER_API_KEY or the file to one line"
      end
      raise IOError, "the API key has characters besides visible ASCII" unless key.match?(/\A[ -~]*\z/)

      key unless key.empty?
    end
    private_class_method :api_key_in, :api_key

    def headers
      fields = { "Host" => @authority, "Connection" => "close", "Accept" => "application/json",
                 "Content-Type" => "application/json" }
      key = @reader.call
      fields["Authorization"] = "Bearer #{key}" if key
      fields
    end

    # The addresses to try: that of the last connection, then those of both families by turns.
    def addresses
      return [Addrinfo.unix(@file)] if @file

      found = Addrinfo.getaddrinfo(@host, @port, nil, :STREAM)
      first, rest = found.partition { |one| one.afamily == found.first.afamily }
      ordered = first.zip(rest).flatten.compact | rest
      good = @good
      ordered.partition { |one| one.ip_address == good }.flatten
    end

    def connect(connection, addresses)
      address = connection.open(addresses)
      @good = address.ip_address if address.ip?
      connection.secure(@tls, @host, LockKeeper.now + Connection::CONNECT) if @tls
    end

    # Asks about no lease of ours. A read is repeated for 5 seconds, a change only if it was not sent.
    # Gateways answer 200 as well: the block knows the body of the service.
    def ask(method, path, allowed = nil)
      over = LockKeeper.now + READ
      attempt = 0
      loop do
        answer = Call.new(self, method, path, limit: 2 * ANSWER).wait
        return answer if (answer.status == 200 && yield(answer.body)) || (allowed && answer.code == allowed)

        answer.refuse
        if LockKeeper.now > over || (answer.was_sent && method != "GET")
          raise ServiceUnavailable, "#{answer}; retry later"
        end

        sleep LockKeeper.pause(attempt)
        attempt += 1
      end
    end

    # The key as UTF-8. A proxy would resolve odd segments, to another key or to a forced release.
    def self.key(key)
      raise RequestRefused, "#{key.inspect} is no key: a key is a text, and several are a list" unless key.is_a?(String)

      text = utf8(key)
      return text if text.valid_encoding? && !text.match?(%r{(\A|/)\.{0,2}(/|\z)})

      raise RequestRefused, "#{key.inspect} is no key: it is a text, without segments that are empty, . or .."
    end

    # A text of a program without a locale has its bytes, and no encoding.
    def self.utf8(text)
      is_bare = [Encoding::US_ASCII, Encoding::BINARY].include?(text.encoding)
      is_bare ? text.dup.force_encoding(Encoding::UTF_8) : text.encode(Encoding::UTF_8)
    rescue EncodingError
      ""
    end

    def self.path(key, prefix = "/locks/")
      prefix + encoded(key, "/")
    end

    def self.encoded(text, safe = "")
      text.b.gsub(/[^A-Za-z0-9_.~#{safe}-]/n) { |byte| format("%%%02X", byte.ord) }
    end

    private

    def wrong(reason)
      shown = @url.include?("@") ? "...@#{@url.rpartition("@").last}" : @url
      raise ArgumentError, "`#{shown}` is not the URL of a service: #{reason}"
    end

    def parse
      if @url.start_with?("unix:")
        @file = @url.delete_prefix("unix:")
        @authority = "localhost"
        @base = ""
        wrong "name a file, as in unix:/run/lockkeeper/lockkeeper.sock" if @file.empty?
        return
      end
      @scheme, rest = @url.match(%r{\A([A-Za-z]+)://(.*)\z}m)&.captures
      @scheme = @scheme&.downcase
      wrong "use http:// or https://, or unix:FILE" unless %w[http https].include?(@scheme)
      wrong "write it like http://host:8080" if rest.match?(/[\x00-\x20\x7f]/)
      wrong "only a host, a port and a path are allowed" if rest.match?(/[@?#]/)
      host = %r{\A(?:\[(?<six>[0-9A-Fa-f:.]+)\]|(?<name>[^/:\[\]]+))(?::(?<port>[0-9]*))?(?<path>/.*)?\z}
      found = rest.match(host) or wrong "write it like http://host:8080"
      @host = found[:six] || found[:name]
      @port = found[:port].to_s.empty? ? (@scheme == "https" ? 443 : 80) : found[:port].to_i
      wrong "write it like http://host:8080" unless (1..65_535).cover?(@port)
      @authority = rest[%r{\A[^/]+}]
      @base = found[:path].to_s.sub(%r{/+\z}, "")
      # It would work, but with other keys than every other client's.
      wrong "leave out /locks, as in http://host:8080" if @base.end_with?("/locks")
    end
  end
end
