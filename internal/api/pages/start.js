// A file and no inline script, so that the page's policy can refuse those.
window.ui = SwaggerUIBundle({
  url: '/openapi.yaml',
  dom_id: '#swagger-ui',
  deepLinking: true,
  validatorUrl: null, // or the document would be sent to swagger.io
});
