# frozen_string_literal: true

require "json"

module LockKeeper
  # The keys of a claim, one or several at once, and what is asked about them.
  module Keys
    MOST_BYTES = 32768 # of a body that the service reads
    LONGEST_NUMBER = (2**53) - 1 # of a lease

    def self.of(key)
      key.is_a?(Array) ? Several.new(key) : One.new(key)
    end

    # A key by itself.
    class One
      attr_reader :keys, :name

      def initialize(key)
        @keys = [Service.key(key).freeze].freeze
        @name = "'#{@keys.first}'"
        @path = Service.path(@keys.first)
      end

      def several?
        false
      end

      # Each returns the path and the body of a request.
      def acquire(options)
        [@path, options]
      end

      def refresh(numbers, ttl_ms)
        ["#{@path}/refresh", { ttl_ms: ttl_ms, fencing_token: numbers[@keys.first] }]
      end

      # Releases the leases with these numbers, or without them whatever the token has.
      def release(numbers)
        [numbers.empty? ? @path : "#{@path}?fencing_token=#{numbers[@keys.first]}", nil]
      end

      # The leases in a grant.
      def leases(body)
        [body.merge("key" => @keys.first)]
      end

      # Whether a grant is one of these keys.
      def in?(body)
        body["key"] == @keys.first
      end
    end

    # A lease of each key, or none. A Hash is a key with its share.
    class Several
      attr_reader :keys, :name

      def initialize(keys)
        @claimed = keys.map do |one|
          named = one.is_a?(Hash) ? one.transform_keys(&:to_sym) : { key: one }
          named.merge(key: Service.key(named[:key]).freeze)
        end
        @keys = @claimed.map { |one| one[:key] }.freeze
        @name = @keys.map { |key| "'#{key}'" }.join(", ")
        # Else they could be acquired, and neither renewed nor released.
        _, longest = refresh(@keys.to_h { |key| [key, LONGEST_NUMBER] }, LONGEST_NUMBER)
        return if JSON.generate(longest).bytesize <= MOST_BYTES

        raise RequestRefused, "the #{keys.size} keys are too long together: a request has at most #{MOST_BYTES} bytes"
      end

      def several?
        true
      end

      def acquire(options)
        ["/locks", options.merge(keys: @claimed)]
      end

      def refresh(numbers, ttl_ms)
        ["/locks/refresh", { ttl_ms: ttl_ms, leases: named(numbers) }]
      end

      def release(numbers)
        ["/locks", { leases: named(numbers) }]
      end

      def leases(body)
        body.fetch("leases", [])
      end

      def in?(body)
        leases(body).map { |one| one["key"] }.sort == @keys.sort
      end

      private

      def named(numbers)
        @keys.map { |key| { key: key, fencing_token: numbers[key] }.compact }
      end
    end
  end
end
