# frozen_string_literal: true

require "json"

module LockKeeper
  # An answer, or what came instead of one.
  class Answer
    MOST_BYTES = 8 << 20 # more than the largest page of a list

    # `others` are the leases that the token has, if they are not those that the request is about: numbers by
    # key, and the key is nil if it is the only one of the request. Of several keys `lost` are those that were lost.
    attr_reader :status, :body, :code, :failure, :others, :lost, :retry_after
    attr_accessor :was_sent, :is_final, :has_api_key

    # Reads the answer of a connection.
    def self.read(connection, deadline)
      reader = Reader.new { connection.read(deadline) }
      reader.head while (100...200).cover?(reader.status)
      text = reader.body
      new(reader.status, parsed(text), retry_after: reader.fields["retry-after"].to_f)
    end

    def self.parsed(text)
      text.empty? ? nil : JSON.parse(text.force_encoding(Encoding::UTF_8))
    rescue JSON::ParserError, EncodingError
      nil
    end

    def initialize(status = 0, body = nil, failure: "", retry_after: 0.0)
      @status = status
      @failure = failure
      @was_sent = true
      @is_final = @has_api_key = false
      @body = body.is_a?(Hash) ? body : {}
      # A problem without a type of the service is from a gateway.
      is_problem = @body["type"].to_s.start_with?("urn:lockkeeper:")
      @code = is_problem ? @body["code"].to_s : ""
      lost = @code == "lock_lost" ? Array(@body["lost"]) : []
      found = @code == "lock_lost" || (@code != "" && @body["mine"]) ? [@body, *lost] : []
      @others = found.to_h { |one| [one["key"], one["fencing_token"]] }.compact
      @lost = lost.map { |one| one["key"] }
      @retry_after = @code == "superseded" ? retry_after : 0.0
    end

    def to_s
      return "#{body["detail"]} (#{status} #{code})" if code != ""

      failure.empty? ? "the answer is #{status} and not from lockkeeper" : failure
    end

    # Whether nothing was granted for sure, and nothing under way will be.
    def no?
      return false if ["", "superseded"].include?(code) || others.any? # Another request has the place, or a lease.

      status < 500 || code == "draining" || body["outcome"] == "not_acquired"
    end

    # Whether another request may be answered otherwise.
    def may_pass?
      !is_final && (!(300...500).cover?(status) || [408, 409, 425, 429].include?(status))
    end

    # Raises if the answer stays the same however often one asks.
    def refuse
      raise RequestRefused.new(refusal, status, body) unless may_pass?
    end

    private

    def refusal
      names = "`api_key`, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE"
      case code
      when "unauthenticated"
        return "unknown API key: look at #{names}" if has_api_key

        "the service asks for an API key: set #{names}"
      when "forbidden" then "#{self}; use an API key with this permission and prefix"
      when "" then is_final ? to_s : "#{self}; check the URL"
      else "#{self}; correct the request"
      end
    end

    # HTTP/1.1, as far as an answer on a connection of its own needs it.
    class Reader
      attr_reader :status, :fields

      def initialize(&more)
        @more = more
        @data = String.new(encoding: Encoding::BINARY)
        head
      end

      def head
        lines = up_to("\r\n\r\n").split("\r\n")
        @status = lines.shift.to_s[%r{\AHTTP/1\.\d (\d{3})}, 1].to_i
        raise IOError, "the answer is not HTTP" if @status.zero?

        @fields = lines.to_h { |line| line.split(/:\s*/, 2).then { |name, text| [name.downcase, text.to_s] } }
      end

      def body
        return "" if [204, 304].include?(@status)
        return chunks if @fields["transfer-encoding"].to_s.downcase.include?("chunked")
        return take(Integer(@fields["content-length"], 10)) if @fields["content-length"]

        nil while more
        @data
      end

      private

      def more
        part = @more.call
        @data << part if part
        raise IOError, "the answer is too long" if @data.bytesize > MOST_BYTES

        part
      end

      def up_to(mark)
        until (at = @data.index(mark))
          more or raise IOError, "the answer was cut"
        end
        @data.slice!(0, at + mark.size)
      end

      def take(count)
        raise IOError, "the answer is too long" if count > MOST_BYTES

        more or raise IOError, "the answer was cut" while @data.bytesize < count
        @data.slice!(0, count)
      end

      def chunks
        text = String.new(encoding: Encoding::BINARY)
        until (size = up_to("\r\n").to_i(16)).zero?
          text << take(size)
          take(2)
          raise IOError, "the answer is too long" if text.bytesize > MOST_BYTES
        end
        up_to("\r\n") # Trailers are not read: the connection is closed.
        text
      end
    end
    private_constant :Reader
  end
end
