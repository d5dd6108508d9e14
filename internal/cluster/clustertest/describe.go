package clustertest

import (
	"testing"

	"github.com/berthrun/berth/internal/cluster/config"
)

// Describe reads the description of a cluster called dev.
func Describe(t *testing.T, text string) *config.Cluster {
	t.Helper()
	c, err := config.Load("f", []byte("apiVersion: berth.run/v1alpha1\nkind: Cluster\nname: dev\n"+text), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
