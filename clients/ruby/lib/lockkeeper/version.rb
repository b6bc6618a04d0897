# frozen_string_literal: true

module LockKeeper
  VERSION = "0.1.0"
end
