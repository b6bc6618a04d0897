# frozen_string_literal: true

module LockKeeper
  # What the service says of a key; `ttl` is in seconds, and `raw` has all members of the answer.
  State = Struct.new(:key, :held, :owner, :fencing_token, :ttl, :waiters, :raw, keyword_init: true) do
    def self.of(raw)
      ttl = raw["ttl_ms"] && raw["ttl_ms"] / 1000.0
      new(key: raw["key"], held: raw["held"], owner: raw["owner"], fencing_token: raw["fencing_token"],
          ttl: ttl, waiters: raw.fetch("waiters", 0), raw: raw)
    end

    alias_method :held?, :held
  end

  # A client of one service, for any number of threads and forked children.
  #
  # `url`, `api_key` (a Pathname: the file that has it), `ca`, `cert`, `cert_key` and `token_prefix` are
  # those of LOCKKEEPER_URL, LOCKKEEPER_API_KEY_FILE or LOCKKEEPER_API_KEY, LOCKKEEPER_CA,
  # LOCKKEEPER_CERT, LOCKKEEPER_CERT_KEY and LOCKKEEPER_TOKEN_PREFIX if they are left out.
  class Client
    def initialize(url = nil, owner: nil, **settings)
      @service = Service.new(url: url, **settings)
      @owner = owner
    end

    def inspect
      "#<#{self.class} #{@service.url}>"
    end

    # Acquires, runs the block with the lease, releases, and returns the block's value. Without a block
    # it returns the lease. `wait: nil` waits for ever. A list of keys is all of them, or none;
    # `{ key: "gpu", slots: 8, units: 3 }` is one with its share.
    #
    # Raises LockBusy, ServiceUnavailable, RequestRefused or WaitCancelled before the block, and
    # LeaseLost at its end, or before it if no lease is left by then. `on_lost` is called before the
    # lease ends, `on_wait` with a Wait when one has begun and once a minute, each in another thread.
    def lock(key, **options, &block)
      used(lease(key, **options), block, &:acquire)
    end

    # As `lock`, but nil at once if another client holds the key.
    def try_lock(key, **options, &block)
      used(lease(key, **options, wait: 0), block) do |lease|
        lease.acquire
      rescue LockBusy
        nil
      end
    end

    # The state of a key, held or not.
    def get(key)
      key = Service.key(key)
      State.of(@service.ask("GET", Service.path(key)) { |body| body["key"] == key }.body)
    end

    # The held keys with a prefix.
    def list(prefix = "")
      found = []
      query = "prefix=#{Service.encoded(Service.utf8(prefix))}&limit=1000"
      cursor = nil
      loop do
        path = "/locks?#{query}#{"&cursor=#{Service.encoded(cursor)}" if cursor}"
        body = @service.ask("GET", path) { |one| one["locks"].is_a?(Array) }.body
        found.concat(body["locks"].map { |raw| State.of(raw) })
        cursor = body["cursor"] or return found
      end
    end

    # Ends all leases of a key, whoever holds them; false if it was not held. Needs `admin`. A lost
    # answer is not repeated, because that could end the next lease.
    def force_release(key, reason: nil)
      key = Service.key(key)
      path = Service.path(key, "/admin/locks/") + (reason ? "?reason=#{Service.encoded(Service.utf8(reason))}" : "")
      answer = @service.ask("DELETE", path, "lock_lost") { |body| body["key"] == key }
      answer.code != "lock_lost"
    end

    private

    # The exception of a signal handler may come before the block, or before its release: after a block
    # nothing is left.
    def used(lease, block)
      granted = yield lease
      granted && block ? granted.use(&block) : granted
    ensure
      lease.forget if block
    end

    def lease(key, ttl: 30, wait: 0, slots: nil, units: nil, shared: false, owner: nil, on_lost: nil, on_wait: nil)
      keys = Keys.of(key)
      share = { slots: slots, units: units, shared: shared || nil }.compact
      if keys.several? && share.any?
        raise ArgumentError, "each of several keys has its own share, as in { key: \"gpu\", slots: 8 }"
      end

      name = owner || @owner || "#{Socket.gethostname}:#{Process.pid}"
      Lease.new(Claim.new(@service, keys, ttl: LockKeeper.seconds(ttl),
                                         wait: wait.nil? ? Float::INFINITY : LockKeeper.seconds(wait),
                                         options: share.merge(owner: name),
                                         on_lost: on_lost, on_wait: on_wait))
    end
  end
end
