// Package e2e tests berth in what it is made for: under a real kubelet, for long.
package e2e
