// Package start follows the pages docs/start word for word, on machines with systemd that have
// nothing installed. `make start-test` makes what the test needs.
package start
