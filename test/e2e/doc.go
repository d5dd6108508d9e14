// Package e2e tests berth in its real use: under a real kubelet, for a long time.
package e2e
