// Package packages tests the packages of a release on machines with systemd: installation, upgrade,
// downgrade and removal, with pods that run. `make packages-test` makes what the tests need.
package packages
