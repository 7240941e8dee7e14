"""What models attend to in one text, and where predicting the context helped: ``contextwise attention``."""
