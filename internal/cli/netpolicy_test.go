package cli

import "testing"

func TestNodeNameIsTheKubelets(t *testing.T) {
	if got := asNodeName(" Node-1.Example \n"); got != "node-1.example" {
		t.Errorf("%q", got)
	}
}
