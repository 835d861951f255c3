package main

// The guide prints this program.
func Example() {
	main()
	// Output: hello
}
