"""What a fit and a search cost, beside the published procedure."""
