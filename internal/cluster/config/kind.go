package config

// kindCluster is kind's v1alpha4, field for field.
type kindCluster struct {
	APIVersion string     `json:"apiVersion" help:"Version of this format." oneof:"kind.x-k8s.io/v1alpha4" required:"yes"`
	Kind       string     `json:"kind" help:"Kind of this document." oneof:"Cluster" required:"yes"`
	Name       string     `json:"name" help:"Name of the cluster."`
	Nodes      []kindNode `json:"nodes" help:"Nodes, one by one."`
	Settings
}

// kindNode is one of its nodes, which has no name of its own and no registries.
type kindNode struct {
	NodeSettings
}

// model is the meaning of a kind file.
func (k kindCluster) model() *Cluster {
	c := defaults()
	c.Name, c.Settings, c.FromKind = k.Name, k.Settings, true
	for _, n := range k.Nodes {
		c.Nodes = append(c.Nodes, Node{NodeSettings: n.NodeSettings})
	}
	return c
}
