// Package sysnet wraps the kernel's calls for sockets of the network: batches of netlink
// requests, and the state of a TCP connection.
package sysnet
