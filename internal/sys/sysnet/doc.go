// Package sysnet holds what the kernel offers for sockets of the network: batches of netlink
// requests, and the state of a TCP connection.
package sysnet
