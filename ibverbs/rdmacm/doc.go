// Package rdmacm makes connections for package ibverbs, with the meaning that
// librdmacm gives them.
package rdmacm
