// Package integration tests a real berth: daemon, supervisor, keeper, images,
// networks, through CRI and through its own commands.
package integration
