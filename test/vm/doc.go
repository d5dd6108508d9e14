// Package vm tests an installed berth: the units of `make install` under a real systemd. The tests
// own the machine that they run on. run.sh boots one for them.
package vm
