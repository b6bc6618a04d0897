# frozen_string_literal: true

module LockKeeper
  # The right to a key, or to several, renewed until it is released or lost.
  #
  # `fencing_token` rises with every lease of the key: let what the lock guards refuse a smaller one.
  # `slot` is a number that no other lease has, with `slots`. Of several keys there are `keys`, and by key
  # `fencing_tokens` and `slots`. Without a block, keep the object: the lease
  # is released when it is collected, and at the end of the process.
  class Lease
    def self.finalizer(claim)
      proc { claim.forget }
    end
    private_class_method :finalizer

    def initialize(claim)
      @claim = claim
      # Also of a claim that nobody ends, because an exception of another thread came in between.
      ObjectSpace.define_finalizer(self, self.class.send(:finalizer, claim))
    end

    def keys
      @claim.keys.keys
    end

    def fencing_tokens
      @claim.fencing_tokens
    end

    def slots
      @claim.slots
    end

    def key
      only(:key, :keys)
    end

    # The token of this lease alone: acquire nothing else with it.
    def token
      @claim.token
    end

    def fencing_token
      fencing_tokens[only(:fencing_token, :fencing_tokens)]
    end

    def slot
      slots[only(:slot, :slots)]
    end

    # Whether to stop: the lease has ended, also by its release, or is about to.
    def lost?
      @claim.lost?
    end

    # Raises LeaseLost if the lease is lost. Nothing else raises in the work: an exception from another
    # thread could come between any two steps.
    def check!
      raise @claim.loss || @claim.late if lost?

      self
    end

    # Seconds that the lease lasts at least, if it is not renewed.
    def remaining
      @claim.remaining
    end

    # Whether the lease lasts for so long, as far as this process knows. Asks nobody.
    def still_mine?(for_seconds = 0)
      !lost? && remaining > LockKeeper.seconds(for_seconds)
    end

    # Releases the lease; false if the service could not be told: then it ends by its TTL. Raises
    # LeaseLost if it had ended before. Does nothing in a forked child.
    def release
      return false unless @claim.own?

      close(nil)
      @claim.was_released
    end

    def inspect
      "#<#{self.class} #{@claim.keys.name} #{fencing_tokens.values.join(", ")}>"
    end

    # Acquires, or raises and leaves nothing behind.
    def acquire
      is_granted = false
      begin
        @claim.start
        @claim.await
        is_granted = true
        self
      ensure
        end_claim(Claim::MOMENT) unless is_granted
      end
    ensure
      forget unless is_granted # The exception of a signal handler has come before the end.
    end

    # Ends the lease without a wait, unless it has ended: the claim's thread releases it in a moment.
    def forget
      @claim.forget
    end

    # Runs the block under the lease, and releases it. A value that is still to come would have no lease.
    def use
      error = nil
      @claim.begin_work
      @claim.worker = Thread.current
      yield(self).tap { |value| raise TypeError, "an Enumerator goes on after its block" if value.is_a?(Enumerator) }
    rescue Exception => error # rubocop:disable Lint/RescueException -- it goes on
      raise
    ensure
      @claim.worker = nil if @claim.own?
      close(error)
    end

    private

    def only(name, names)
      return keys.first unless @claim.keys.several?

      raise NoMethodError, "a lease of several keys has no `#{name}`: use `#{names}`"
    end

    # An exception of another thread has to wait until the claim is told; it may cut the rest short.
    def end_claim(longest)
      Thread.handle_interrupt(Object => :never) { @claim.finish }
      @claim.join(longest)
    end

    # Nothing that lost its lease ends as a success; an error of the work is the cause. An error in place
    # of `Thread#kill` would let the thread go on.
    def close(error)
      is_success = error.nil? || (error.is_a?(SystemExit) && error.success?)
      is_usual = (is_success || error.is_a?(StandardError)) && Thread.current.status != "aborting"
      # A caller does not wait for what it has cancelled.
      end_claim(is_usual ? Claim::LONGEST : Claim::MOMENT)
      loss = @claim.loss
      raise loss if loss && is_usual && !error.is_a?(LeaseLost)
    end
  end
end
